//! The spec of a method: `name[:key=value[,key=value]...]`, as rope specs are written.

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

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(found) => Err(self.bad(format!("{key}: expected true or false, found '{found}'"))),
        }
    }

    /// A whole number from `least` on.
    pub(super) fn number(&self, key: &str, least: usize) -> Result<Option<usize>> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let most = u32::MAX as usize;
        let number = text.parse().ok().filter(|n| (least..=most).contains(n));
        let wrong =
            || self.bad(format!("{key}: expected a whole number from {least} to {most}, found '{text}'"));
        number.map(Some).ok_or_else(wrong)
    }

    /// A number from 0 to 1.
    pub(super) fn part(&self, key: &str) -> Result<Option<f64>> {
        let Some(text) = self.get(key) else { return Ok(None) };
        let number = text.parse().ok().filter(|x: &f64| (0.0..=1.0).contains(x));
        number
            .map(Some)
            .ok_or_else(|| self.bad(format!("{key}: expected a number from 0 to 1, found '{text}'")))
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
