//! The plan in force in an iteration, the same on every rank.

use std::time::Instant;

use evenstep_c10d::Group;
use evenstep_client::{Allocated, Connection, Prefetcher};
use evenstep_rules::{Plan, SharedTail, checked};

/// Chooses the plan of each iteration.
#[derive(Debug)]
pub struct Planner {
    /// The latest allocation of a full global batch; it stays in force until a newer one arrives.
    in_force: Plan,
    source: Source,
}

/// Source of plans. Only rank 0 is connected to the predictor.
#[derive(Debug)]
enum Source {
    Even { quantum: u64, tail: Option<SharedTail> },
    Predictor { rank0: Option<Box<Ahead>>, next: Option<Plan> },
}

#[derive(Debug)]
struct Ahead {
    prefetcher: Prefetcher<Plan>,
    /// The allocation that the last all-reduce carried.
    carried: Option<Allocated<Plan>>,
}

/// The plan of an iteration and its cost.
#[derive(Debug)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Time to take over the plan, on the critical path, in seconds.
    pub request_s: f64,
    /// On rank 0: the allocation, if it was made for this iteration.
    pub answered: Option<Allocated<Plan>>,
}

impl Planner {
    /// Returns a planner of even splits, with a shared tail if `tail` is set, that never queries the
    /// predictor. `in_force` is an even split of a full global batch.
    pub fn even(in_force: Plan, quantum: u64, tail: Option<SharedTail>) -> Self {
        Self { in_force, source: Source::Even { quantum, tail } }
    }

    /// Returns a planner that follows the predictor's allocations, and `in_force` until the first arrives.
    /// Only rank 0 has a `connection`. Allocations are requested ahead, during the previous iteration.
    pub fn with_predictor(connection: Option<Connection>, in_force: Plan) -> Self {
        let mut planner = Self { in_force, source: Source::Predictor { rank0: None, next: None } };
        if let Some(connection) = connection {
            planner.connect(connection);
        }
        planner
    }

    /// Returns the latest allocation of a full global batch.
    pub fn in_force(&self) -> &Plan {
        &self.in_force
    }

    /// On rank 0: requests the first iterations of the run, which no all-reduce precedes.
    pub fn begin(&self, iteration: u64, size: u64) {
        if let Source::Predictor { rank0: Some(ahead), .. } = &self.source {
            ahead.prefetcher.request(iteration, size);
        }
    }

    /// Returns the plan of an iteration of `size` samples, the same on all ranks.
    pub fn plan(&mut self, group: &Group, iteration: u64, size: u64) -> Planned {
        let started = Instant::now();
        let (newest, answered) = match &mut self.source {
            Source::Even { quantum, tail } => {
                let (workers, quantum) = (group.world_size(), *quantum);
                let plan = match *tail {
                    Some(tail) => Plan::even_with_tail(size, workers, quantum, tail),
                    None => Plan::even(size, workers, quantum),
                };
                let plan = plan.at_rate(self.in_force.rate());
                return Planned { plan, request_s: 0.0, answered: None };
            }
            Source::Predictor { rank0, next } => {
                let carried = rank0.as_mut().and_then(|ahead| ahead.carried.take());
                let exact = carried.filter(|answered| answered.timed.response.iteration == iteration);
                (next.take(), exact)
            }
        };
        let plan = self.follow(newest, size);
        Planned { plan, request_s: started.elapsed().as_secs_f64(), answered }
    }

    /// Records the newest plan. An allocation of a full batch stays in force until the next one.
    fn follow(&mut self, newest: Option<Plan>, size: u64) -> Plan {
        let Some(newest) = newest else { return self.in_force.resized(size, 1) };
        // The learning rate follows every allocation, whatever its size.
        let rate = self.in_force.rate().with(newest.rate());
        let newest = newest.at_rate(rate);
        self.in_force = self.in_force.clone().at_rate(rate);
        if newest.global_batch() == self.in_force.global_batch() {
            self.in_force = newest.clone();
        }
        if newest.global_batch() == size { newest } else { self.in_force.resized(size, 1) }
    }

    /// On rank 0: returns the newest allocation, which this iteration's all-reduce
    /// carries.
    pub fn newest(&mut self) -> Option<Plan> {
        let Source::Predictor { rank0: Some(ahead), .. } = &mut self.source else { return None };
        ahead.carried = ahead.prefetcher.newest();
        ahead.carried.as_ref().map(|answered| answered.plan.clone())
    }

    /// After the all-reduce of an iteration: records the plan that it carried, and requests the plan of the
    /// iteration after the next, which has `size` samples.
    pub fn learn(&mut self, iteration: u64, newest: Option<Plan>, size: u64) {
        if let Source::Predictor { rank0, next } = &mut self.source {
            *next = newest;
            if let Some(ahead) = rank0 {
                ahead.prefetcher.request(iteration + 2, size);
            }
        }
    }

    /// On rank 0: sends requests over this connection from now on. Has no effect for even splits.
    pub fn connect(&mut self, connection: Connection) {
        match &mut self.source {
            Source::Even { .. } => {}
            Source::Predictor { rank0, .. } => {
                *rank0 = Some(Box::new(Ahead {
                    prefetcher: Prefetcher::start(connection, checked),
                    carried: None,
                }));
            }
        }
    }

    /// Delivers the last reports and leaves the job. `next_size` is the number of samples in the next
    /// iteration, if the run continued.
    pub fn close(&mut self, next_size: u64) {
        let connection = match &mut self.source {
            Source::Even { .. } => None,
            Source::Predictor { rank0, .. } => rank0.take().and_then(|ahead| ahead.prefetcher.finish()),
        };
        if let Some(connection) = connection {
            connection.close(next_size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramp_in_a_ragged_allocation_continues_during_an_outage() {
        let mut planner = Planner::with_predictor(None, Plan::even(60, 3, 1));
        planner.follow(Some(Plan::in_rank_order(&[1, 1, 1], 2.0)), 3);
        assert_eq!(planner.follow(None, 60), Plan::in_rank_order(&[20, 20, 20], 2.0));
    }

    #[test]
    fn the_last_full_allocation_stays_in_force_through_a_ragged_end_and_an_outage() {
        let mut planner = Planner::with_predictor(None, Plan::even(60, 3, 1));
        assert_eq!(planner.follow(None, 60), Plan::in_rank_order(&[20, 20, 20], 1.0));
        let full = Plan::in_rank_order(&[10, 20, 30], 0.5);
        assert_eq!(planner.follow(Some(full.clone()), 60), full);
        let ragged = Plan::in_rank_order(&[1, 1, 1], 0.5);
        assert_eq!(planner.follow(Some(ragged.clone()), 3), ragged);
        assert_eq!(planner.follow(None, 60), full);
        assert_eq!(planner.follow(None, 6), Plan::in_rank_order(&[1, 2, 3], 0.5));
        // A late allocation for another size is kept for later and does not decide this iteration's size.
        let late = Plan::in_rank_order(&[30, 20, 10], 1.0);
        assert_eq!(planner.follow(Some(late.clone()), 6), Plan::in_rank_order(&[3, 2, 1], 1.0));
        assert_eq!(planner.follow(None, 60), late);
    }
}
