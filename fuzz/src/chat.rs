//! Chat templates, rendered in this process.

use std::time::SystemTime;

use ropewalk::chat::{Message, Template};

use crate::accepted;

/// Longest template. What a template can make of memory grows with its length.
const MAX: usize = 2048;

/// Constructs that only the limits of a process of its own hold back: filters that repeat, operators that join.
/// Sound templates have them too, and the seeds here do without.
const GROWS: &[&str] =
    &["~", "*", "+", "indent", "batch", "slice", "format", "range", "center", "join", "replace"];

/// Renders a conversation through the template.
pub fn run(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    if bytes.len() > MAX || GROWS.iter().any(|word| text.contains(word)) {
        return false;
    }
    let messages = [Message::new("system", "Be brief."), Message::new("user", "What is \"this\"?\n")];
    let template = Template::at(Some(text), "<s>", "</s>", SystemTime::UNIX_EPOCH);
    accepted(template.and_then(|template| template.render(&messages, true)))
}

/// Templates with the constructs that models use.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        "{{ bos_token }}{%- for m in messages -%}{% if loop.index0 % 2 == 0 and m['role'] != 'system' %}\
         {{ raise_exception('roles') }}{% else %}{% generation %}{{ m.content.strip() | trim | tojson }}\
         {% endgeneration %}{% endif %}{%- endfor -%}{{ eos_token }}",
        "{% set ns = namespace(n=0) %}{% macro f(x) %}[{{ x|upper }}]{% endmacro %}{{ f('a') }}\
         {{ strftime_now('%d %b %Y') }}{% if tools is not none %}{{ tools|tojson }}{% endif %}\
         {{ messages[1:]|length }}{{ messages[0].content.split('.')[0] }}",
    ]
    .map(|s| s.as_bytes().to_vec())
    .into()
}
