//! Sliding windows: which layers have one, and the keys that say so.

use ropewalk_core::hparams::keys::WINDOWS;

use crate::config::Config;
use crate::json::kind;
use crate::keys::Keys;
use crate::Result;

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// For each layer whether `layer_types` calls it `yes`; the others must be `full_attention`. `None` without such a list.
pub(super) fn layer_types(c: &Config, yes: &str) -> Result<Option<Vec<bool>>> {
    let Some(types) = c.object.array("layer_types")? else { return Ok(None) };
    let n = c.u32("num_hidden_layers")? as usize;
    if types.len() != n {
        let what = format!("found {} entries, expected num_hidden_layers = {n}", types.len());
        return Err(c.object.error("layer_types", what));
    }
    let of = |value: &serde_json::Value| match value.as_str() {
        Some(name) if name == yes => Ok(true),
        Some(FULL) => Ok(false),
        _ => {
            let what = format!("found {}, expected {yes} or {FULL}", kind(value));
            Err(c.object.error("layer_types", what))
        }
    };
    types.iter().map(of).collect::<Result<_>>().map(Some)
}

/// Which layers slide by `layer_types`, else by `every` as in `sliding_window_pattern`: all but every n-th.
pub(super) fn sliding(c: &Config, every: usize) -> Result<Vec<bool>> {
    Ok(match layer_types(c, SLIDING)? {
        Some(slides) => slides,
        None => (1..=c.u32("num_hidden_layers")? as usize).map(|i| !i.is_multiple_of(every)).collect(),
    })
}

/// Writes the window, and the layers that have it where these are not all but every `usual`-th, as llama.cpp takes it.
/// `needed`: whether llama.cpp asks for a window even where no layer has one.
pub(super) fn pattern(c: &Config, k: &mut Keys, usual: usize, needed: bool) -> Result<()> {
    let every = c.object.u32("sliding_window_pattern")?.map_or(usual, |n| n as usize);
    if every == 0 {
        return Err(c.object.error("sliding_window_pattern", "found 0, expected at least 1"));
    }
    let slides = sliding(c, every)?;
    let any = slides.contains(&true);
    if !any && !needed {
        return Ok(());
    }
    let window = if any { window(c)? } else { c.u32("max_position_embeddings")? };
    k.set("attention.sliding_window", window);
    if slides.iter().enumerate().any(|(i, &slides)| slides == (i + 1).is_multiple_of(usual)) {
        k.set("attention.sliding_window_pattern", slides);
    }
    Ok(())
}

/// `sliding_window`, which must be there.
pub(super) fn window(c: &Config) -> Result<u32> {
    match c.object.u32("sliding_window")? {
        Some(n) if n > 0 => Ok(n),
        found => {
            let found = found.map_or("none".to_owned(), |n| n.to_string());
            let what = format!("found {found}, expected the tokens that a layer with a window sees");
            Err(c.object.error("sliding_window", what))
        }
    }
}

/// A window in all layers, where `sliding_window` says that there is one.
pub(super) fn in_all(c: &Config, k: &mut Keys) -> Result<()> {
    let n = c.u32("num_hidden_layers")? as usize;
    c.object.get("sliding_window").map_or(Ok(()), |_| own(c, k, &vec![true; n]))
}

/// Windows that `use_sliding_window` turns on: in the layers that `layer_types` lists, else in those that `slides` gives.
pub(super) fn if_used(c: &Config, k: &mut Keys, slides: impl Fn(usize) -> bool) -> Result<()> {
    let used =
        c.object.bool("use_sliding_window")?.unwrap_or(false) && c.object.get("sliding_window").is_some();
    let slides = match layer_types(c, SLIDING)? {
        Some(slides) => slides,
        None => (0..c.u32("num_hidden_layers")? as usize).map(|i| used && slides(i)).collect(),
    };
    if !used && slides.contains(&true) {
        let what =
            format!("found {SLIDING}, expected {FULL} alone without use_sliding_window and sliding_window");
        return Err(c.object.error("layer_types", what));
    }
    own(c, k, &slides)
}

/// Windows of an architecture that has none in llama.cpp, by a key of ropewalk's own.
fn own(c: &Config, k: &mut Keys, slides: &[bool]) -> Result<()> {
    if !slides.contains(&true) {
        return Ok(());
    }
    let n = window(c)?;
    k.plain(WINDOWS, slides.iter().map(|&slides| if slides { n } else { 0 }).collect::<Vec<u32>>());
    k.notes.push(format!(
        "sliding_window: llama.cpp has no window in this architecture. ropewalk reads it under {WINDOWS}; llama.cpp computes \
         the same for texts of up to {n} tokens, and something else for longer ones."
    ));
    Ok(())
}
