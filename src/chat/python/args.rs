//! Arguments of a Python function: by place, then by name.

use std::collections::VecDeque;

use minijinja::value::{ArgType, Kwargs, Value};
use minijinja::{Error, ErrorKind};

pub(super) struct Args {
    places: VecDeque<Value>,
    names: Kwargs,
}

impl Args {
    pub(super) fn of(mut all: Vec<Value>) -> Result<Args, Error> {
        let names = match all.pop() {
            Some(last) => match Kwargs::try_from(last.clone()) {
                Ok(names) if last.is_kwargs() => names,
                _ => {
                    all.push(last);
                    Kwargs::from_iter(std::iter::empty::<(&str, Value)>())
                }
            },
            None => Kwargs::from_iter(std::iter::empty::<(&str, Value)>()),
        };
        Ok(Args { places: all.into(), names })
    }

    /// The next argument by place, else that of this name, which may be missing.
    pub(super) fn take<T>(&mut self, name: &str) -> Result<Option<T>, Error>
    where
        T: for<'a> ArgType<'a, Output = T>,
    {
        match self.places.pop_front() {
            Some(value) => T::from_value(Some(&value)).map(Some),
            None if self.names.has(name) => self.names.get::<T>(name).map(Some),
            None => Ok(None),
        }
    }

    /// [`Args::take`] of what must be there.
    pub(super) fn need<T>(&mut self, name: &str) -> Result<T, Error>
    where
        T: for<'a> ArgType<'a, Output = T>,
    {
        self.take(name)?.ok_or_else(|| Error::new(ErrorKind::MissingArgument, format!("expected {name}")))
    }

    /// [`Args::take`] of a text, where none may stand for no text.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        match self.take::<Value>(name)? {
            Some(value) if value.as_str().is_some() => Ok(value.as_str().map(str::to_owned)),
            Some(value) if !value.is_none() => Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("{name}: expected a text, found a value of type {}", super::values::name(&value)),
            )),
            _ => Ok(None),
        }
    }

    /// [`Args::text`] of what must be there.
    pub(super) fn need_text(&mut self, name: &str) -> Result<String, Error> {
        self.text(name)?
            .ok_or_else(|| Error::new(ErrorKind::MissingArgument, format!("{name}: expected a text")))
    }

    /// Without arguments by name.
    pub(super) fn by_place(&self, of: &str) -> Result<(), Error> {
        match self.names.args().next() {
            Some(name) => Err(Error::new(
                ErrorKind::TooManyArguments,
                format!("{of} takes no argument by name, found {name}"),
            )),
            None => Ok(()),
        }
    }

    /// An error where arguments are left.
    pub(super) fn end(self) -> Result<(), Error> {
        if !self.places.is_empty() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.names.assert_all_used()
    }
}
