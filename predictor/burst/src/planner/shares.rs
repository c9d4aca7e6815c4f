//! Shares of a layer's samples: its GPUs share them by speed.

/// Sample shares of GPUs, ordered by speed.
pub(super) struct Shares {
    /// Indices into the given speeds, the fastest first. GPUs of equal speed keep their order.
    pub order: Vec<usize>,
    /// Speeds in descending order.
    speeds: Vec<f64>,
    /// Prefix sums of `speeds`.
    sums: Vec<f64>,
    global_batch: u64,
}

impl Shares {
    pub fn new(speeds: &[f64], global_batch: u64) -> Self {
        let mut order: Vec<usize> = (0..speeds.len()).collect();
        order.sort_by(|a, b| speeds[*b].total_cmp(&speeds[*a]).then(a.cmp(b)));
        let speeds: Vec<f64> = order.iter().map(|gpu| speeds[*gpu]).collect();
        let mut sum = 0.0;
        let add = |speed: &f64| {
            sum += speed;
            sum
        };
        let sums = std::iter::once(0.0).chain(speeds.iter().map(add)).collect();
        Self { order, speeds, sums, global_batch }
    }

    /// Returns the sum of the speeds of the `count` fastest GPUs.
    pub fn speed(&self, count: usize) -> f64 {
        self.sums[count]
    }

    /// Returns the upper bound on samples of each of the `count` fastest GPUs: its share by speed, rounded
    /// up.
    pub fn batches(&self, count: usize) -> impl Iterator<Item = u64> {
        let per_speed = self.global_batch as f64 / self.sums[count];
        // A share that exceeds an integer only by rounding error is that integer.
        self.speeds[..count].iter().map(move |speed| (speed * per_speed * (1.0 - 1e-12)).ceil() as u64)
    }

    /// Returns the samples of each of the `count` fastest GPUs; their sum is the global batch. Shares by
    /// speed are rounded down, and the remaining samples go to the largest remainders, on ties to the
    /// fastest. No GPU exceeds [`Self::batches`].
    pub fn samples(&self, count: usize) -> Vec<u64> {
        let per_speed = self.global_batch as f64 / self.sums[count];
        let parts: Vec<f64> = self.speeds[..count].iter().map(|speed| speed * per_speed).collect();
        let mut samples: Vec<u64> = parts.iter().map(|part| part.floor() as u64).collect();
        let left = self.global_batch.saturating_sub(samples.iter().sum());
        let mut by_loss: Vec<usize> = (0..count).collect();
        by_loss.sort_by(|a, b| parts[*b].fract().total_cmp(&parts[*a].fract()).then(a.cmp(b)));
        for place in by_loss.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            samples[place] += 1;
        }
        samples
    }

    /// Returns the time of the slowest of the `count` fastest GPUs, if a GPU of speed 1 takes
    /// `time_us(batch)`.
    pub fn compute_us(&self, count: usize, time_us: impl Fn(u64) -> f64) -> f64 {
        let mut slowest: f64 = 0.0;
        let mut last = None;
        for (speed, batch) in self.speeds.iter().zip(self.batches(count)) {
            // GPUs of equal speed are adjacent and take the same time.
            if last != Some(*speed) {
                slowest = slowest.max(time_us(batch) / speed);
                last = Some(*speed);
            }
        }
        slowest
    }

    /// Returns the maximum number of samples that one GPU sends or receives when the count changes from
    /// `from` to `to`. Samples that stay on a GPU are not moved.
    pub fn moved(&self, from: usize, to: usize) -> u64 {
        let zero = std::iter::repeat(0);
        let before = self.batches(from).chain(zero.clone());
        let pairs = before.zip(self.batches(to).chain(zero)).take(from.max(to));
        pairs.map(|(had, has)| had.abs_diff(has)).max().unwrap_or(0)
    }
}

/// Interpolates the points at `batch` as [`Cost::Profile`](super::Cost::Profile) defines it; 0 without
/// points.
pub(super) fn at(points: &[(u64, f64)], batch: u64) -> f64 {
    let right = points.partition_point(|(size, _)| *size < batch);
    let ((x0, y0), (x1, y1)) = match (points, right) {
        ([], _) => return 0.0,
        ([(_, y), ..], 0) => return *y,
        ([only], _) => ((0, 0.0), *only),
        _ => (points[right.min(points.len() - 1) - 1], points[right.min(points.len() - 1)]),
    };
    (y0 + (y1 - y0) * ((batch - x0) as f64 / (x1 - x0) as f64)).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_follow_speeds() {
        let shares = Shares::new(&[1.0, 2.0, 1.0], 32);
        assert_eq!(shares.order, [1, 0, 2]);
        assert_eq!(shares.batches(3).collect::<Vec<_>>(), [16, 8, 8]);
        assert_eq!(shares.batches(2).collect::<Vec<_>>(), [22, 11], "21 1/3 and 10 2/3, rounded up");
        // The fast GPU takes 16 / 2, the others 8 / 1. The fixed cost of 4 adds 2 and 4.
        assert_eq!(shares.compute_us(3, |batch| 4.0 + batch as f64), 12.0);
    }

    #[test]
    fn samples_are_the_whole_batch() {
        assert_eq!(Shares::new(&[1.0, 2.0, 1.0], 32).samples(2), [21, 11]);
        assert_eq!(Shares::new(&[1.0; 4], 6).samples(4), [2, 2, 1, 1]);
        for gpus in 1..40 {
            let speeds: Vec<f64> = (0..gpus).map(|gpu| 0.1 + f64::from(gpu * gpu % 7)).collect();
            for global_batch in 1..200 {
                let shares = Shares::new(&speeds, global_batch);
                for count in 1..=speeds.len() {
                    let samples = shares.samples(count);
                    assert_eq!(samples.iter().sum::<u64>(), global_batch, "{speeds:?}");
                    assert!(samples.iter().zip(shares.batches(count)).all(|(has, most)| *has <= most));
                }
            }
        }
    }

    #[test]
    fn samples_that_stay_are_not_moved() {
        let shares = Shares::new(&[1.0; 8], 32);
        let moved = |from, to| shares.moved(from, to);
        assert_eq!([moved(1, 8), moved(8, 1), moved(4, 8), moved(2, 4), moved(4, 4)], [28, 28, 4, 8, 0]);
    }

    #[test]
    fn lines() {
        let points = [(2, 10.0), (4, 20.0), (8, 24.0)];
        assert_eq!(
            [1, 2, 3, 4, 6, 8, 12].map(|batch| at(&points, batch)),
            [10., 10., 15., 20., 22., 24., 28.]
        );
        assert_eq!([1, 2, 3].map(|batch| at(&[(2, 10.0)], batch)), [10.0, 10.0, 15.0]);
        assert_eq!(at(&[], 3), 0.0);
    }
}
