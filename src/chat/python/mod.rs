//! Behavior of Jinja2 under Python that minijinja alone does not have.
//!
//! Held to transformers' renderings in `tests/data/chat`. What cannot be rendered as Jinja2 does ends in an error that names
//! it.

mod args;
mod compare;
mod expr;
mod filters;
mod format;
mod letters;
mod methods;
mod ops;
mod print;
mod sequences;
mod source;
mod tree;
mod values;

use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

/// An environment as transformers' `apply_chat_template` makes one, with this template in it.
pub(super) fn environment(
    name: &'static str,
    template: &str,
    fuel: u64,
) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_keep_trailing_newline(true);
    env.set_fuel(Some(fuel));
    env.set_recursion_limit(200);
    env.set_unknown_method_callback(|_, value, name, given| methods::call(value, name, given));
    env.set_formatter(|out, _, value| {
        let text = print::str(value)?;
        out.write_str(&text).map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, print::str(&message)?))
    });
    ops::add(&mut env);
    filters::add(&mut env);
    sequences::add(&mut env);
    env.add_filter("tojson", print::tojson);
    env.add_template_owned(name, tree::rewritten(&source::rewritten(template))?)?;
    Ok(env)
}
