//! Monomials of regressors up to a degree.

/// All monomials of `width` regressors up to a degree: first the constant, then in order of degree.
#[derive(Debug, Clone)]
pub(super) struct Monomials {
    /// Each monomial as the index of the monomial that it extends and the additional regressor; `None` for
    /// the constant.
    steps: Vec<Option<(usize, usize)>>,
}

impl Monomials {
    /// Creates the monomials of `width` regressors up to `degree`; `None` if there are more than `most`.
    pub fn up_to(degree: usize, width: usize, most: usize) -> Option<Self> {
        let mut steps = vec![None];
        let mut level = 0..1;
        for _ in 0..degree {
            for parent in level.clone() {
                // Factors are in ascending order, so that each product occurs once.
                let first = steps[parent].map_or(0, |(_, factor)| factor);
                steps.extend((first..width).map(|factor| Some((parent, factor))));
                if steps.len() > most {
                    return None;
                }
            }
            level = level.end..steps.len();
        }
        Some(Self { steps })
    }

    /// Number of monomials.
    pub fn count(&self) -> usize {
        self.steps.len()
    }

    /// Appends the values of the monomials at one row of regressors to `values`, which must be empty.
    pub fn values(&self, regressors: &[f64], values: &mut Vec<f64>) {
        for step in &self.steps {
            values.push(step.map_or(1.0, |(parent, factor)| values[parent] * regressors[factor]));
        }
    }

    /// Returns the regressors in monomial `at`, in ascending order.
    pub fn factors(&self, at: usize) -> Vec<usize> {
        let mut factors: Vec<usize> =
            std::iter::successors(self.steps[at], |(parent, _)| self.steps[*parent])
                .map(|(_, factor)| factor)
                .collect();
        factors.reverse();
        factors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_product_once() {
        let monomials = Monomials::up_to(2, 2, 6).unwrap();
        let factors: Vec<_> = (0..monomials.count()).map(|at| monomials.factors(at)).collect();
        assert_eq!(factors, [vec![], vec![0], vec![1], vec![0, 0], vec![0, 1], vec![1, 1]]);
        let mut values = Vec::new();
        monomials.values(&[2.0, 5.0], &mut values);
        assert_eq!(values, [1.0, 2.0, 5.0, 4.0, 10.0, 25.0]);
    }

    /// The binomial coefficient (width + degree) over degree.
    #[test]
    fn counted_and_bounded() {
        assert_eq!(Monomials::up_to(6, 4, 1000).map(|all| all.count()), Some(210));
        assert!(Monomials::up_to(6, 4, 209).is_none());
        assert_eq!(Monomials::up_to(3, 0, 10).map(|all| all.count()), Some(1));
    }
}
