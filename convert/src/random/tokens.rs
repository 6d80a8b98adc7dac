//! A byte-level tokenizer for models without one: 256 byte tokens, three special ones, unused ones to fill
//! up.

use gguf::{Array, Value, Writer};

/// Tokens there are at least: one for each byte, and the special ones.
pub const N_MIN: usize = 256 + SPECIAL.len();

const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// ChatML, so that `chat` works with a random model too.
const TEMPLATE: &str =
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The spelling of a byte in GPT-2's vocabulary: printable Latin-1 as itself, the others as U+0100 and up, in
/// order.
fn spelling(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    match printable(byte) {
        true => char::from(byte),
        // At most 68 bytes are not printable, so the sum is a valid code point.
        false => {
            char::from_u32(256 + (0..byte).filter(|&b| !printable(b)).count() as u32).unwrap_or('\u{100}')
        }
    }
}

/// Writes the tokenizer's keys: llama.cpp's `gpt2` tokenizer without merges, so that every byte is a token.
pub(super) fn write(writer: &mut Writer<'_>, n_vocab: usize) {
    // Numbers of llama.cpp's llama_token_type.
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const UNUSED: i32 = 5;
    let bytes = (0..=255u8).map(|b| (spelling(b).to_string(), NORMAL));
    let special = SPECIAL.iter().map(|s| (s.to_string(), CONTROL));
    let unused = (N_MIN..n_vocab).map(|i| (format!("<|unused_{i}|>"), UNUSED));
    let (tokens, kinds) = bytes.chain(special).chain(unused).map(|(t, k)| (t.into_bytes(), k)).unzip();
    writer
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "gpt-2")
        .set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)))
        .set("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)))
        .set("tokenizer.ggml.merges", Value::Array(Array::String(Vec::new())))
        .set("tokenizer.ggml.bos_token_id", Value::U32(256))
        .set("tokenizer.ggml.eos_token_id", Value::U32(256))
        .set("tokenizer.ggml.eot_token_id", Value::U32(258))
        .set("tokenizer.ggml.add_bos_token", Value::Bool(false))
        .set("tokenizer.chat_template", TEMPLATE);
}
