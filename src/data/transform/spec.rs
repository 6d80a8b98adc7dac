//! The spec of a method: `name[:key=value[,key=value]...]`, as rope specs are written.

use std::str::FromStr;

use ropewalk_core::settings;

use super::{Method, METHODS};
use crate::error::{invalid, Result};

/// The parameters given for a method.
pub(crate) struct Args<'t> {
    name: &'static str,
    values: Vec<(&'static str, &'t str)>,
}

impl<'t> Args<'t> {
    pub(super) fn parse(text: &'t str) -> Result<(&'static Method, Args<'t>)> {
        let (name, rest) = settings::named(text);
        let method = METHODS.iter().find(|m| m.name == name).ok_or_else(|| {
            let names: Vec<&str> = METHODS.iter().map(|m| m.name).collect();
            invalid(format!("data method: expected one of {}, found '{name}'", names.join(", ")))
        })?;
        let known: Vec<&'static str> = method.params.iter().map(|(key, _)| *key).collect();
        let values = settings::pairs(&format!("data method {name}"), rest, &known).map_err(invalid)?;
        Ok((method, Args { name: method.name, values }))
    }

    /// An error that names the method.
    pub(super) fn bad(&self, what: impl std::fmt::Display) -> crate::error::Error {
        invalid(format!("data method {}: {what}", self.name))
    }

    pub(super) fn get(&self, key: &str) -> Option<&'t str> {
        self.values.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }

    /// The value of a key, where it is given and fits.
    fn parsed<T: FromStr>(
        &self,
        key: &str,
        expected: &str,
        fits: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let value = text.parse().ok().filter(fits);
        value.map(Some).ok_or_else(|| self.bad(format!("{key}: expected {expected}, found '{text}'")))
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.parsed(key, "true or false", |_| true)?.unwrap_or(default))
    }

    /// A whole number from `least` on.
    pub(super) fn number(&self, key: &str, least: usize) -> Result<Option<usize>> {
        let most = u32::MAX as usize;
        let expected = format!("a whole number from {least} to {most}");
        self.parsed(key, &expected, |n| (least..=most).contains(n))
    }

    /// A number from 0 to 1.
    pub(super) fn part(&self, key: &str) -> Result<Option<f64>> {
        self.parsed(key, "a number from 0 to 1", |x| (0.0..=1.0).contains(x))
    }

    /// Probabilities such as `0/0.5/0.5`, which add up to 1; at most `most` of them.
    pub(super) fn probabilities(&self, key: &str, text: &str, most: usize) -> Result<Vec<f64>> {
        let list: Option<Vec<f64>> = text
            .split('/')
            .map(|p| p.trim().parse().ok().filter(|p: &f64| (0.0..=1.0).contains(p)))
            .collect();
        list.filter(|list| list.len() <= most && (list.iter().sum::<f64>() - 1.0).abs() < 1e-6).ok_or_else(
            || {
                self.bad(format!(
                "{key}: expected 1 to {most} probabilities such as 0/0.5/0.5 that add up to 1, found '{text}'"
            ))
            },
        )
    }
}
