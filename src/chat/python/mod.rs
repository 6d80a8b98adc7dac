//! What Jinja2 under Python does, and minijinja alone does not.
//!
//! Held to transformers' renderings in `tests/data/chat`. What is left: a tuple prints as a list, `~` writes lists
//! and dicts as JSON, a loop over the characters of a text does not know its length, one over nothing is no error, and
//! `safe` does not make `+` escape the other text.

mod args;
mod filters;
mod json;
mod methods;
mod print;
mod source;

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

/// An environment as transformers' `apply_chat_template` makes one, with this template in it.
pub(super) fn environment(
    name: &'static str,
    template: &str,
    fuel: u64,
) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_fuel(Some(fuel));
    env.set_recursion_limit(200);
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, _, value| {
        let text = print::str(value)?;
        out.write_str(&text).map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, print::str(&message)?))
    });
    filters::add(&mut env);
    env.add_filter("tojson", json::tojson);
    env.add_template_owned(name, source::rewritten(template)?)?;
    Ok(env)
}
