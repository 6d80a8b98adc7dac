//! Samplers of libllama that are freed once. `tests/llama/sampler.rs` compiles this file for itself.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::{sys, Error, Result};

/// One of libllama's samplers: a step, or a chain, which owns the steps in it.
#[derive(Debug)]
pub(super) struct Steps(pub(super) NonNull<sys::llama_sampler>);

impl Drop for Steps {
    fn drop(&mut self) {
        // SAFETY: libllama made it, and it is freed nowhere else; a chain frees what was added.
        unsafe { sys::llama_sampler_free(self.0.as_ptr()) };
    }
}

impl Steps {
    /// Owns what a function of libllama has made.
    pub(super) fn new(made: *mut sys::llama_sampler) -> Result<Steps> {
        NonNull::new(made).map(Steps).ok_or_else(|| Error::Backend("libllama: no sampler".into()))
    }

    pub(super) fn chain(steps: impl IntoIterator<Item = Result<Steps>>) -> Result<Steps> {
        // SAFETY: no preconditions.
        let chain = unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params()) };
        let chain = Steps::new(chain)?;
        for step in steps {
            let step = ManuallyDrop::new(step?);
            // SAFETY: both are valid; the chain owns the step from here on.
            unsafe { sys::llama_sampler_chain_add(chain.0.as_ptr(), step.0.as_ptr()) };
        }
        Ok(chain)
    }

    /// Runs the chain over the candidates, which it may reorder and cut. Answers with the index it drew, if
    /// it draws.
    pub(super) fn apply(&mut self, candidates: &mut Vec<sys::llama_token_data>) -> Option<usize> {
        let mut array = sys::llama_token_data_array {
            data: candidates.as_mut_ptr(),
            size: candidates.len(),
            selected: -1,
            sorted: false,
        };
        // SAFETY: the chain is valid, and the array is the vector's. The candidates are not empty and their
        // logits neither NaN nor out of range, which is what libllama's sorting and softmax rely on.
        unsafe { sys::llama_sampler_apply(self.0.as_ptr(), &mut array) };
        candidates.truncate(array.size);
        usize::try_from(array.selected).ok().filter(|&i| i < candidates.len())
    }
}
