//! Products by ggml's kernels, divided among the threads of a pool: each thread computes a part of the result by a graph
//! of one node, on a backend of one thread.
//!
//! ggml divides a node itself, among threads that spin until all have arrived. Here a product is a node of ours, and
//! whoever takes a part of it calls ggml.

mod cut;

use std::cell::RefCell;
use std::ops::Range;

use crate::backend::{Backend, Device};
use crate::graph::Builder;
use crate::node::Part;
use crate::tensor::{Arena, Tensor};
use crate::{sys, DType, Result};
use cut::{cut, range, Cut, ROWS, TOKENS};

impl<'c> Builder<'c> {
    /// F32 of this shape by `op`, `GGML_OP_MUL_MAT` or `GGML_OP_MUL_MAT_ID`, of arguments that were checked; `None` where ggml
    /// may as well compute it by itself.
    pub(crate) fn in_parts(
        &self,
        op: sys::ggml_op,
        ne: [usize; 4],
        args: &[Tensor<'c>],
    ) -> Result<Option<Tensor<'c>>> {
        let bytes = |t: &Tensor<'_>| t.ne().iter().zip(t.nb()).map(|(&n, nb)| n.saturating_mul(nb)).max();
        if !self.own || args.iter().filter_map(bytes).all(|n| n < self.divide_from) || ne[3] != 1 {
            return Ok(None);
        }
        let device = self.device;
        self.custom("product", DType::F32, ne, args, move |part| run_part(&part, op, device)).map(Some)
    }
}

/// Backend, graph, and memory with which a thread computes parts.
struct Lane {
    backend: Backend,
    graph: *mut sys::ggml_cgraph,
    headers: Box<[sys::ggml_tensor; 4]>,
    _arena: Arena,
}

impl Lane {
    fn new(device: Device) -> Result<Lane> {
        let backend = Backend::new(device)?;
        // SAFETY: a pure function of the size.
        let arena = Arena::new(1, unsafe { sys::ggml_graph_overhead_custom(1, false) } + 4096)?;
        // SAFETY: plain numbers and pointers, for which zeros are values.
        let mut headers: Box<[sys::ggml_tensor; 4]> = Box::new(unsafe { std::mem::zeroed() });
        // SAFETY: the arena has room for a graph of one node, which stays where it is, in its box.
        let graph = unsafe {
            let graph = sys::ggml_new_graph_custom(arena.as_ptr(), 1, false);
            sys::ggml_graph_add_node(graph, &mut headers[0]);
            graph
        };
        Ok(Lane { backend, graph, headers, _arena: arena })
    }
}

thread_local! {
    static LANE: RefCell<Option<Lane>> = const { RefCell::new(None) };
}

/// Takes a range of one dimension of a tensor.
fn narrow(t: &mut sys::ggml_tensor, dim: usize, range: &Range<usize>) {
    // Dimension 0 is of the result alone, whose elements are no blocks.
    let offset = range.start * t.nb[dim];
    t.ne[dim] = range.len() as i64;
    t.data = t.data.cast::<u8>().wrapping_add(offset).cast();
}

fn run_part(part: &Part<'_>, op: sys::ggml_op, device: Device) {
    let ([m, n, heads, _], [_, _, n_matrices, _]) = (part.ne(), part.source(0).ne());
    let of_experts = op == sys::GGML_OP_MUL_MAT_ID;
    let (shape, i, n_parts) = ([m, n, heads], part.ith(), part.nth());
    let cut = match cut(shape, n_matrices, n_parts) {
        // The dimensions are rows of a weight, places and tokens, and a row's products do not depend on the others.
        _ if of_experts && n_parts > 1 => Cut::Rows,
        cut => cut,
    };
    let mine = match cut {
        Cut::Rows => range(shape[0], ROWS, i, n_parts),
        Cut::Tokens => range(shape[1], TOKENS, i, n_parts),
        Cut::Heads(shared) => range(shape[2], shared, i, n_parts),
        Cut::Nothing => 0..usize::from(i == 0),
    };
    if mine.is_empty() {
        return;
    }
    LANE.with_borrow_mut(|lane| {
        let lane = lane.get_or_insert_with(|| Lane::new(device).expect("a backend of one thread"));
        let [node, ..] = &mut *lane.headers;
        *node = *part.node();
        (node.op, node.op_params) = (op, Default::default());
        node.flags |= sys::GGML_TENSOR_FLAG_COMPUTE as i32;
        for (k, source) in part.sources().enumerate() {
            lane.headers[k + 1] = *source.tensor();
            lane.headers[0].src[k] = &mut lane.headers[k + 1];
        }
        let [node, w_part, x_part, _] = &mut *lane.headers;
        match cut {
            Cut::Rows => {
                narrow(node, 0, &mine);
                narrow(w_part, 1, &mine);
            }
            Cut::Tokens => {
                narrow(node, 1, &mine);
                narrow(x_part, 1, &mine);
            }
            Cut::Heads(shared) => {
                narrow(node, 2, &mine);
                narrow(x_part, 2, &mine);
                narrow(w_part, 2, &(mine.start / shared..mine.end / shared));
            }
            Cut::Nothing => {}
        }
        // SAFETY: headers of parts of tensors that are there; parts of one node write disjoint elements of its result.
        let status = unsafe { sys::ggml_backend_graph_compute(lane.backend.as_ptr(), lane.graph) };
        assert_eq!(status, sys::GGML_STATUS_SUCCESS, "a product of ggml's");
    });
}
