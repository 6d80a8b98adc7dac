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

    /// An error where arguments are left.
    pub(super) fn end(self) -> Result<(), Error> {
        if !self.places.is_empty() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.names.assert_all_used()
    }
}
