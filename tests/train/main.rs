//! Training: gradients against finite differences of a naive f64 model, and different ways to the same
//! gradients; the optimiser, checkpoints, memory, bad input.

#[path = "../common/mod.rs"]
mod common;

#[path = "../reach/naive.rs"]
mod naive;

mod adapter_file;
mod checkpoint;
mod gradients;
mod invalid;
mod memory;
mod optim;
mod overfit;
mod same;

/// What `naive` wants to know of a method.
mod cases {
    use ropewalk::hparams::Hparams;
    use ropewalk::rope::Plan;

    /// Plain attention within documents, at the frequencies of a plan.
    pub(crate) struct Case {
        pub(crate) rel: Box<dyn Fn(i64, i64) -> Option<i64> + Sync>,
        pub(crate) mscale: Box<dyn Fn() -> f64 + Sync>,
        pub(crate) q_scale: Box<dyn Fn(i64) -> f64 + Sync>,
    }

    impl Case {
        pub(crate) fn new(plan: &Plan, borders: &[u32]) -> Case {
            let (borders, plan) = (borders.to_vec(), plan.clone());
            let mscale = plan.mscale;
            Case {
                rel: Box::new(move |i, j| {
                    let first = borders.iter().copied().map(i64::from).filter(|&b| b <= i).max().unwrap_or(0);
                    (first..=i).contains(&j).then_some(i - j)
                }),
                mscale: Box::new(move || mscale),
                q_scale: Box::new(move |i| plan.q_scale(i as i32)),
            }
        }

        pub(crate) fn tables(&self, _: &Hparams, plan: &Plan) -> Vec<Vec<f64>> {
            plan.freqs.tables().map(<[f64]>::to_vec).collect()
        }
    }
}
