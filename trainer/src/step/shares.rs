//! A worker's part of an iteration: it loads its shares and adds up their gradients.

use std::time::Instant;

use anyhow::{Context, Result};
use evenstep_c10d::cuda;
use tch::{Device, Tensor};

use crate::data::{Cursor, Dataset};
use crate::model::{Compute, ComputeError, Computed, Model, Work, attempt};
use crate::plan::Share;
use crate::progress::Output;

/// The shares of one worker in one iteration.
pub struct Shares<'a> {
    model: &'a dyn Model,
    parameters: &'a [Tensor],
    data: &'a dyn Dataset,
    cursor: &'a Cursor,
    device: Device,
    compute: &'a mut Compute,
    shares: Vec<Share>,
    /// Results so far, other than the gradients.
    pub computed: Computed,
    /// Time to load samples, in seconds.
    pub loader_wait_s: f64,
}

impl<'a> Shares<'a> {
    /// Starts an iteration: gradients are zero or undefined.
    pub fn begin(
        compute: &'a mut Compute,
        (model, parameters): (&'a dyn Model, &'a [Tensor]),
        (data, cursor): (&'a dyn Dataset, &'a Cursor),
        device: Device,
    ) -> Self {
        let computed = compute.begin(parameters);
        Self {
            model,
            parameters,
            data,
            cursor,
            device,
            compute,
            shares: Vec::new(),
            computed,
            loader_wait_s: 0.0,
        }
    }

    /// Adds the gradients of a share. Calls `before_last` before its last micro-batch, with the results until then and
    /// the number of samples in that micro-batch.
    ///
    /// If memory runs out, all shares of the iteration are computed again with half the samples at once, because the
    /// failed pass may have added part of its gradients. Later iterations keep the smaller size. The gradients are the
    /// same, and the predictor is not informed: its caps bound the local batch, while memory depends on one pass.
    ///
    /// # Errors
    /// A pass failed for another reason, one sample does not fit, or `before_last` failed.
    pub fn add(
        &mut self,
        share: Share,
        output: impl Fn() -> Output,
        before_last: impl FnMut(&Computed, u64) -> Result<()>,
    ) -> Result<()> {
        self.shares.push(share);
        let mut added = self.add_once(share, before_last);
        while let Err(error) = added {
            self.halve(error, &output)?;
            self.computed = self.compute.begin(self.parameters);
            added = (0..self.shares.len()).try_for_each(|at| self.add_once(self.shares[at], |_, _| Ok(())));
        }
        Ok(())
    }

    /// Loads and computes a share.
    fn add_once(
        &mut self,
        share: Share,
        mut before_last: impl FnMut(&Computed, u64) -> Result<()>,
    ) -> Result<()> {
        let (mut at, end) = (share.offset, share.offset + share.local_batch);
        while at < end {
            let (count, loading) = (self.compute.load_batch.min(end - at), Instant::now());
            let indices = self.cursor.slice(at, count);
            let batch = attempt(Work::Load, count, || Ok(self.data.batch(indices, self.device)))?;
            self.loader_wait_s += loading.elapsed().as_secs_f64();
            at += count;
            let ask = |before: &Computed, last| if at == end { before_last(before, last) } else { Ok(()) };
            self.compute.add(self.model, &batch, &mut self.computed, ask)?;
        }
        Ok(())
    }

    /// Halves the number of samples at once after an out-of-memory error. Returns any other error.
    fn halve(&mut self, error: anyhow::Error, output: impl Fn() -> Output) -> Result<()> {
        let Some(&ComputeError::OutOfMemory { work, samples, .. }) = error.downcast_ref() else {
            return Err(error);
        };
        if samples < 2 {
            return Err(error).context("one sample does not fit into memory; use a smaller model");
        }
        let half = samples / 2;
        match work {
            Work::Load => self.compute.load_batch = half,
            Work::Pass => self.compute.micro_batch = half,
        }
        if matches!(self.device, Device::Cuda(_)) {
            // Cached blocks of the old size may not fit the new one.
            cuda::empty_cache().context("after an out-of-memory error")?;
        }
        output().say(&format!("{error}; from now on at most {half} samples at once"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, no_grad};

    use super::*;
    use crate::data::{Batch, TensorDataset};

    /// A linear model through samples of one number, with memory for passes of `fits` samples. A larger pass fails in
    /// libtorch's allocator, after it has added its gradients.
    struct Line {
        weight: Tensor,
        fits: i64,
    }

    impl Model for Line {
        fn parameters(&self) -> Vec<Tensor> {
            vec![self.weight.shallow_clone()]
        }

        fn loss_sum(&self, batch: &Batch) -> Tensor {
            let loss = (&batch.inputs * &self.weight - &batch.targets).square().sum(Kind::Double);
            if batch.len() > self.fits {
                loss.backward();
                return Tensor::zeros([1 << 50], (Kind::Double, Device::Cpu));
            }
            loss
        }
    }

    /// Returns the gradient, the results and the size of passes after the shares 0..20 and 20..30.
    fn trained(
        fits: i64,
        micro_batch: u64,
        last: impl FnMut(&Computed, u64),
    ) -> Result<(f64, Computed, u64)> {
        tch::set_num_threads(1);
        let weight = Tensor::from(0.5).set_requires_grad(true);
        let model = Line { weight, fits };
        let parameters = model.parameters();
        let samples = Tensor::arange(30, (Kind::Double, Device::Cpu));
        let data = TensorDataset::new(samples.copy(), no_grad(|| samples.sin()));
        let cursor = Cursor::new(1, 30);
        let mut compute = Compute::new(micro_batch, None);
        let mut shares = Shares::begin(&mut compute, (&model, &parameters), (&data, &cursor), Device::Cpu);
        let mut last = last;
        for share in [Share { offset: 0, local_batch: 20 }, Share { offset: 20, local_batch: 10 }] {
            shares.add(
                share,
                || Output::new("test"),
                |before, samples| {
                    last(before, samples);
                    Ok(())
                },
            )?;
        }
        let computed = shares.computed;
        Ok((parameters[0].grad().double_value(&[]), computed, compute.micro_batch))
    }

    #[test]
    fn passes_that_do_not_fit_are_halved_and_every_sample_counts_once() {
        let (whole, in_one, _) = trained(i64::MAX, 20, |_, _| ()).unwrap();
        let mut lasts = Vec::new();
        let (gradient, computed, micro_batch) =
            trained(6, 20, |before, last| lasts.push((before.samples, last))).unwrap();
        assert_eq!(micro_batch, 5, "20, then 10, then 5");
        assert_eq!((computed.samples, computed.micro_batches), (30, 6));
        assert!((gradient - whole).abs() < 1e-9 * whole.abs(), "{gradient} {whole}");
        assert!((computed.loss_sum - in_one.loss_sum).abs() < 1e-9 * in_one.loss_sum);
        // Once per share: a share that is computed again claims nothing again.
        assert_eq!(lasts, [(0, 20), (25, 5)]);
    }

    #[test]
    fn a_sample_that_does_not_fit_is_an_error() {
        let error = format!("{:#}", trained(0, 4, |_, _| ()).unwrap_err());
        assert!(error.starts_with("one sample does not fit into memory"), "{error}");
        assert!(error.contains("computing the gradients of 1 samples"), "{error}");
    }
}
