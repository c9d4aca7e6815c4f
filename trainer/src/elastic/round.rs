//! A round: its arrivals, its missing members, and the decision to close its list of members. Pure; does not
//! access the store.

use std::collections::BTreeSet;

use evenstep_protocol::WorkerId;
use serde::{Deserialize, Serialize};

use crate::plan::Rate;

/// Name of one life of a worker, which is a process. A worker that returns keeps its id and gets another
/// token.
pub type Token = String;

/// A worker that arrived in a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// Token of this life of the worker.
    pub token: Token,
    /// Id of the worker.
    pub worker: WorkerId,
    /// Slot of the worker: its position in the first round.
    pub slot: usize,
    /// Name of the device.
    pub device: String,
    /// State that the worker contributes.
    pub standing: Standing,
}

/// State that a worker contributes to a round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// No parameters: the worker takes over the state of another one.
    Blank,
    /// Initial parameters, which are obsolete when any round has begun to train.
    Fresh(Position),
    /// Parameters of a run that has begun.
    Trained(Position),
}

/// Position of a worker in the run, with its share and learning rate there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// The first unfinished iteration.
    pub iteration: u64,
    /// The epoch of that iteration.
    pub epoch: u64,
    /// Samples of that epoch that are done.
    pub done: u64,
    /// Share of the plan in force, with the expected claims; `None` if the worker has no share yet.
    pub local_batch: Option<u64>,
    /// Multiplier of the learning rate in the plan in force; `None` at the start of a run.
    pub rate: Option<Rate>,
    /// Time since the start of the run, in seconds.
    pub elapsed_s: f64,
}

/// A closed list of members. It is the same for all members and never changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Members {
    /// Members in rank order: members of the previous round first, in their order, then the new arrivals.
    pub members: Vec<Arrival>,
    /// Rank that sends its parameters: it is furthest ahead.
    pub source: usize,
    /// Rejected lives, with reasons.
    pub refused: Vec<(Token, String)>,
    /// All workers that were ever members.
    pub ever: BTreeSet<WorkerId>,
}

/// Rules of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MembershipRules {
    /// Number of members of the first round.
    pub initial_workers: usize,
    /// Minimum length of a list.
    pub min_workers: usize,
    /// Maximum length of a list.
    pub max_workers: usize,
}

/// State of an open round.
#[derive(Debug, Clone, Copy)]
pub struct Open<'a> {
    /// Arrivals in order.
    pub arrivals: &'a [Arrival],
    /// List of the previous round; `None` in the first.
    pub before: Option<&'a Members>,
    /// Lives that are over, or whose heartbeats are missing.
    pub gone: &'a BTreeSet<Token>,
    /// Whether any round has begun to train.
    pub begun: bool,
    /// Whether the wait for missing members is over.
    pub overdue: bool,
}

/// Decision about a round.
#[derive(Debug, Clone, PartialEq)]
pub enum RoundDecision {
    /// Some members have not arrived yet.
    Wait,
    /// All live workers have arrived, but they are too few.
    Paused {
        /// Number of live workers.
        live: usize,
    },
    /// No live worker has the parameters of the run.
    Lost,
    /// The list is complete.
    Close(Members),
}

impl Open<'_> {
    /// Returns the worker that closes the list: the first live arrival.
    pub fn closer(&self) -> Option<&Token> {
        self.live().map(|arrival| &arrival.token).next()
    }

    /// Returns the live members of the previous round that have not arrived.
    pub fn missing(&self) -> impl Iterator<Item = &Token> {
        let before = self.before.map_or(&[][..], |before| &before.members);
        before
            .iter()
            .map(|member| &member.token)
            .filter(|token| !self.gone.contains(*token))
            .filter(|token| !self.arrivals.iter().any(|arrival| arrival.token == **token))
    }

    /// Returns the current decision.
    pub fn verdict(&self, membership_rules: MembershipRules) -> RoundDecision {
        let (members, refused) = self.admitted(membership_rules.max_workers);
        let waited_for = match self.before {
            Some(_) => self.missing().next().is_some(),
            None => members.len() < membership_rules.initial_workers,
        };
        if waited_for && !self.overdue {
            return RoundDecision::Wait;
        }
        let standing = |member: &Arrival| match member.standing {
            Standing::Trained(position) => Some((position.iteration, 1)),
            Standing::Fresh(position) if !self.begun => Some((position.iteration, 0)),
            Standing::Fresh(_) | Standing::Blank => None,
        };
        let furthest = members.iter().filter_map(standing).max();
        let source = members.iter().position(|member| furthest.is_some() && standing(member) == furthest);
        match source {
            None if !waited_for && self.before.is_some() && !members.is_empty() => RoundDecision::Lost,
            None => RoundDecision::Wait,
            Some(_) if members.len() < membership_rules.min_workers => {
                RoundDecision::Paused { live: members.len() }
            }
            Some(source) => {
                let mut ever = self.before.map(|before| before.ever.clone()).unwrap_or_default();
                ever.extend(members.iter().map(|member| member.worker.clone()));
                RoundDecision::Close(Members { members, source, refused, ever })
            }
        }
    }

    /// Returns the live arrivals.
    pub fn live(&self) -> impl Iterator<Item = &Arrival> {
        self.arrivals.iter().filter(|arrival| !self.gone.contains(&arrival.token))
    }

    /// Returns the admitted workers in rank order, and the rejected ones.
    fn admitted(&self, max_workers: usize) -> (Vec<Arrival>, Vec<(Token, String)>) {
        let rank_before = |arrival: &Arrival| {
            let same = |member: &Arrival| member.token == arrival.token;
            self.before.and_then(|before| before.members.iter().position(same)).unwrap_or(usize::MAX)
        };
        let mut candidates: Vec<&Arrival> = self.live().collect();
        // The sort is stable: new workers follow the former members in order of arrival; in the first round
        // slots decide.
        match self.before {
            Some(_) => candidates.sort_by_key(|arrival| rank_before(arrival)),
            None => candidates.sort_by_key(|arrival| arrival.slot),
        }
        let (mut members, mut refused): (Vec<Arrival>, _) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let refusal = if members.iter().any(|member| member.worker == candidate.worker) {
                format!("another live worker has the id {}", candidate.worker)
            } else if members.len() == max_workers {
                format!("the global batch has room for {max_workers} workers, and all places are taken")
            } else {
                members.push(candidate.clone());
                continue;
            };
            refused.push((candidate.token.clone(), refusal));
        }
        (members, refused)
    }
}

impl Members {
    /// Returns the rank of a life.
    pub fn rank(&self, token: &str) -> Option<usize> {
        self.members.iter().position(|member| member.token == token)
    }

    /// Returns the members' ids in rank order.
    pub fn workers(&self) -> Vec<WorkerId> {
        self.members.iter().map(|member| member.worker.clone()).collect()
    }

    /// Returns the position from which the run continues.
    pub fn position(&self) -> Option<Position> {
        match self.members.get(self.source)?.standing {
            Standing::Trained(position) | Standing::Fresh(position) => Some(position),
            Standing::Blank => None,
        }
    }

    /// Returns members of `before` whose life is not in this list, and lives of this list that are not in
    /// `before`.
    pub fn changes(&self, before: &Self) -> (Vec<WorkerId>, Vec<WorkerId>) {
        let without = |one: &Self, other: &Self| {
            let absent = one.members.iter().filter(|member| other.rank(&member.token).is_none());
            absent.map(|member| member.worker.clone()).collect()
        };
        (without(before, self), without(self, before))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERMS: MembershipRules = MembershipRules { initial_workers: 3, min_workers: 2, max_workers: 4 };

    fn position(iteration: u64) -> Position {
        Position { iteration, epoch: 0, done: 0, local_batch: None, rate: None, elapsed_s: 0.0 }
    }

    fn arrival(slot: usize, life: usize, standing: Standing) -> Arrival {
        let worker = WorkerId::new(format!("w/{slot}")).unwrap();
        Arrival { token: format!("{slot}.{life}"), worker, slot, device: "cpu".into(), standing }
    }

    fn trained(slot: usize, iteration: u64) -> Arrival {
        arrival(slot, 0, Standing::Trained(position(iteration)))
    }

    fn open<'a>(arrivals: &'a [Arrival], before: Option<&'a Members>, gone: &'a BTreeSet<Token>) -> Open<'a> {
        Open { arrivals, before, gone, begun: before.is_some(), overdue: false }
    }

    fn closed(open: &Open<'_>) -> Members {
        match open.verdict(TERMS) {
            RoundDecision::Close(members) => members,
            other => panic!("{other:?}"),
        }
    }

    fn first() -> Members {
        let fresh: Vec<Arrival> =
            [2, 0, 1].map(|slot| arrival(slot, 0, Standing::Fresh(position(0)))).to_vec();
        let nobody = BTreeSet::new();
        assert_eq!(open(&fresh[..2], None, &nobody).verdict(TERMS), RoundDecision::Wait);
        closed(&open(&fresh, None, &nobody))
    }

    fn slots(members: &Members) -> Vec<usize> {
        members.members.iter().map(|member| member.slot).collect()
    }

    #[test]
    fn a_worker_leaves_and_rejoins_a_run() {
        let first = first();
        assert_eq!(slots(&first), [0, 1, 2], "slots decide in the first round");

        // 0 dies; 2 finished an iteration that 1 did not.
        let mut arrivals = vec![trained(2, 8), trained(1, 7)];
        let nobody = BTreeSet::new();
        assert_eq!(
            open(&arrivals, Some(&first), &nobody).verdict(TERMS),
            RoundDecision::Wait,
            "0 may still come"
        );
        let gone = BTreeSet::from(["0.0".to_owned()]);
        let second = closed(&open(&arrivals, Some(&first), &gone));
        assert_eq!((slots(&second), second.source), (vec![1, 2], 1));
        assert_eq!(second.position().unwrap().iteration, 8);
        let names =
            |slots: &[usize]| -> Vec<String> { slots.iter().map(|slot| format!("w/{slot}")).collect() };
        let (left, came) = second.changes(&first);
        assert_eq!((left.len(), left[0].as_str(), came.len()), (1, "w/0", 0));

        // 0 returns and is the first to arrive; the others are awaited and precede it.
        arrivals = vec![arrival(0, 1, Standing::Blank)];
        assert_eq!(open(&arrivals, Some(&second), &gone).verdict(TERMS), RoundDecision::Wait);
        arrivals.extend([trained(1, 20), trained(2, 20)]);
        let third = closed(&open(&arrivals, Some(&second), &gone));
        assert_eq!((slots(&third), third.source), (vec![1, 2, 0], 0));
        let ever: Vec<String> = third.ever.iter().map(ToString::to_string).collect();
        assert_eq!(ever, names(&[0, 1, 2]));
    }

    #[test]
    fn too_few_workers_pause_the_run_and_unheld_parameters_are_lost() {
        let first = first();
        let gone = BTreeSet::from(["0.0".to_owned(), "1.0".to_owned()]);
        let alone = [trained(2, 7)];
        assert_eq!(open(&alone, Some(&first), &gone).verdict(TERMS), RoundDecision::Paused { live: 1 });
        let all = BTreeSet::from(["0.0".to_owned(), "1.0".to_owned(), "2.0".to_owned()]);
        let back = [0, 1, 2].map(|slot| arrival(slot, 1, Standing::Fresh(position(0))));
        assert_eq!(
            open(&back, Some(&first), &all).verdict(TERMS),
            RoundDecision::Lost,
            "initial parameters are obsolete"
        );
        let not_begun = Open { begun: false, ..open(&back, Some(&first), &all) };
        assert_eq!(slots(&closed(&not_begun)), [0, 1, 2], "nothing was trained yet");
    }

    #[test]
    fn a_duplicate_name_and_a_job_beyond_the_limit_are_rejected() {
        let first = first();
        let nobody = BTreeSet::new();
        let mut arrivals = vec![arrival(1, 9, Standing::Blank)];
        arrivals.extend([0, 1, 2].map(|slot| trained(slot, 5)));
        arrivals.extend([3, 4].map(|slot| arrival(slot, 0, Standing::Blank)));
        let second = closed(&open(&arrivals, Some(&first), &nobody));
        assert_eq!(slots(&second), [0, 1, 2, 3]);
        let refused: Vec<&str> = second.refused.iter().map(|(token, _)| token.as_str()).collect();
        assert_eq!(refused, ["1.9", "4.0"]);
    }

    proptest! {
        /// For any observer and order of arrivals: survivors come first in their old order, no worker is
        /// listed twice or dead, and the source is furthest ahead.
        #[test]
        fn lists_keep_their_laws(
            order in Just((0..6_usize).collect::<Vec<_>>()).prop_shuffle(),
            dead in prop::collection::btree_set(0..3_usize, 0..3),
            iterations in prop::collection::vec(0_u64..3, 3),
        ) {
            let first = first();
            let gone: BTreeSet<Token> = dead.iter().map(|slot| format!("{slot}.0")).collect();
            let arrivals: Vec<Arrival> = order.iter().map(|&who| match who {
                0..3 => trained(who, iterations[who]),
                _ => arrival(who - 3, 1, Standing::Blank),
            }).collect();
            let membership_rules = MembershipRules { initial_workers: 3, min_workers: 1, max_workers: 6 };
            let RoundDecision::Close(list) = open(&arrivals, Some(&first), &gone).verdict(membership_rules) else {
                return Err(TestCaseError::fail("all workers have arrived"));
            };
            let survivors = 3 - dead.len();
            prop_assert!(slots(&list)[..survivors].is_sorted());
            prop_assert!(list.members.iter().all(|member| !gone.contains(&member.token)));
            let names: BTreeSet<&WorkerId> = list.members.iter().map(|member| &member.worker).collect();
            prop_assert_eq!(names.len(), list.members.len());
            prop_assert_eq!(list.members.len(), 3, "each name occurs once: the dead workers returned");
            let furthest = (0..3).filter(|slot| !dead.contains(slot)).map(|slot| iterations[slot]).max();
            prop_assert_eq!(list.position().map(|position| position.iteration), furthest);
        }
    }
}
