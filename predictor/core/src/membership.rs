//! Who takes part in a job: stable ids, leases, and a generation that rises with every change of the set.
//!
//! A plain function of (state, event, time): joins, leaves and expiries change the set, and take effect at the next
//! iteration that is planned. Slow is not failed: only silence beyond the lease removes a worker. One that comes and goes
//! costs everybody a new plan each time: after [`FLAP_DEPARTURES`] departures within [`FLAP_WINDOW_MS`] it has to wait.

use std::collections::VecDeque;

/// So many departures within [`FLAP_WINDOW_MS`] make a worker a flapping one.
pub const FLAP_DEPARTURES: usize = 10;
/// The window in which departures count: ten minutes.
pub const FLAP_WINDOW_MS: i64 = 600_000;

/// A flapping worker has to wait before it may come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("departed {FLAP_DEPARTURES} times within {} s: may come back in {} s", FLAP_WINDOW_MS / 1000, (wait_ms + 999) / 1000)]
pub struct Cooling {
    /// For how long, in milliseconds.
    pub wait_ms: i64,
}

/// Whether a worker takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It takes part.
    Live,
    /// It said that it leaves.
    Left,
    /// Its lease ran out.
    Expired,
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<Id> {
    /// Its stable id.
    pub id: Id,
    /// Whether it takes part.
    pub state: State,
    /// When it was last heard of, in milliseconds of the caller's clock.
    pub last_seen_ms: i64,
    /// Its latest departures, the oldest first; at most [`FLAP_DEPARTURES`] are kept.
    pub departures_ms: VecDeque<i64>,
}

impl<Id> Member<Id> {
    fn depart(&mut self, state: State, now_ms: i64) {
        self.state = state;
        self.departures_ms.push_back(now_ms);
        while self.departures_ms.len() > FLAP_DEPARTURES {
            self.departures_ms.pop_front();
        }
    }

    /// How long it has to wait before it may come back.
    fn cooling(&self, now_ms: i64, cooldown_ms: i64) -> Option<Cooling> {
        let recent = self.departures_ms.iter().filter(|at| now_ms.saturating_sub(**at) <= FLAP_WINDOW_MS);
        let wait_ms = self.departures_ms.back()?.saturating_add(cooldown_ms).saturating_sub(now_ms);
        (recent.count() >= FLAP_DEPARTURES && wait_ms > 0).then_some(Cooling { wait_ms })
    }
}

/// The workers of a job, in order of their latest joining.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members<Id> {
    generation: u64,
    /// The generation that the latest leave, expiry or [`Members::void`] brought: answers from before it may name a worker that
    /// is gone, or a batch that does not fit.
    departed_generation: u64,
    members: Vec<Member<Id>>,
}

impl<Id> Default for Members<Id> {
    fn default() -> Self {
        Self { generation: 0, departed_generation: 0, members: Vec::new() }
    }
}

impl<Id: Clone + Eq> Members<Id> {
    /// The set as it was stored; every live worker is taken as heard of by whoever stored it.
    pub fn restore(generation: u64, departed_generation: u64, members: Vec<Member<Id>>) -> Self {
        Self { generation, departed_generation, members }
    }

    /// The current generation; 0 before the first join.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The generation of the latest departure; 0 before the first.
    pub fn departed_generation(&self) -> u64 {
        self.departed_generation
    }

    /// Every worker that ever joined.
    pub fn all(&self) -> &[Member<Id>] {
        &self.members
    }

    /// Live workers in rank order.
    pub fn live(&self) -> impl Iterator<Item = &Id> {
        self.members.iter().filter(|member| member.state == State::Live).map(|member| &member.id)
    }

    /// Whether a worker ever joined.
    pub fn knows(&self, id: &Id) -> bool {
        self.members.iter().any(|member| member.id == *id)
    }

    /// A worker takes part: true where that changed the set. A live worker only renews its lease; one that had gone
    /// comes back behind the others.
    ///
    /// # Errors
    /// [`Cooling`] where it flaps and its last departure is less than `cooldown_ms` ago; then nothing has changed.
    pub fn join(&mut self, id: &Id, now_ms: i64, cooldown_ms: i64) -> Result<bool, Cooling> {
        let mut departures_ms = VecDeque::new();
        if let Some(at) = self.members.iter().position(|member| member.id == *id) {
            if self.members[at].state == State::Live {
                self.members[at].last_seen_ms = now_ms;
                return Ok(false);
            }
            if let Some(cooling) = self.members[at].cooling(now_ms, cooldown_ms) {
                return Err(cooling);
            }
            departures_ms = self.members.remove(at).departures_ms;
        }
        self.members.push(Member { id: id.clone(), state: State::Live, last_seen_ms: now_ms, departures_ms });
        self.generation += 1;
        Ok(true)
    }

    /// A worker leaves: true where that changed the set.
    pub fn leave(&mut self, id: &Id, now_ms: i64) -> bool {
        let member = self.members.iter_mut().find(|member| member.id == *id && member.state == State::Live);
        let Some(member) = member else { return false };
        member.depart(State::Left, now_ms);
        self.depart();
        true
    }

    /// What was answered to the current generation cannot be carried out (a worker ran out of memory): as after a departure,
    /// such answers are void.
    pub fn void(&mut self) {
        self.depart();
    }

    /// A worker was heard of. Departed workers stay departed.
    pub fn renew(&mut self, id: &Id, now_ms: i64) {
        if let Some(member) = self.members.iter_mut().find(|member| member.id == *id) {
            member.last_seen_ms = now_ms;
        }
    }

    /// Removes every worker that was silent for longer than the lease and returns them; one generation for all.
    pub fn expire(&mut self, now_ms: i64, lease_ms: i64) -> Vec<Id> {
        let silent = |member: &&mut Member<Id>| {
            member.state == State::Live && now_ms.saturating_sub(member.last_seen_ms) > lease_ms
        };
        let mut gone = Vec::new();
        for member in self.members.iter_mut().filter(silent) {
            member.depart(State::Expired, now_ms);
            gone.push(member.id.clone());
        }
        if !gone.is_empty() {
            self.depart();
        }
        gone
    }

    fn depart(&mut self) {
        self.generation += 1;
        self.departed_generation = self.generation;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn join<'a>(members: &mut Members<&'a str>, id: &'a str, now_ms: i64) -> bool {
        members.join(&id, now_ms, 0).unwrap()
    }

    #[test]
    fn a_life_of_a_job() {
        let mut members = Members::default();
        assert!(join(&mut members, "a", 0) && join(&mut members, "b", 0));
        assert!(!join(&mut members, "a", 50), "joining again only renews");
        assert_eq!((members.generation(), members.departed_generation()), (2, 0));
        assert_eq!(members.expire(100, 60), ["b"], "a was heard of at 50");
        assert!(!members.leave(&"b", 100), "already gone");
        assert_eq!((members.generation(), members.departed_generation()), (3, 3));
        members.renew(&"b", 101);
        assert_eq!(
            members.live().copied().collect::<Vec<_>>(),
            ["a"],
            "a report does not bring a worker back"
        );
        assert!(join(&mut members, "b", 102));
        assert_eq!(members.live().copied().collect::<Vec<_>>(), ["a", "b"]);
        assert!(members.leave(&"a", 102) && join(&mut members, "a", 103));
        assert_eq!(members.live().copied().collect::<Vec<_>>(), ["b", "a"], "who comes back stands behind");
        assert_eq!(members.generation(), 6);
    }

    #[test]
    fn who_comes_and_goes_has_to_wait() {
        let mut members = Members::default();
        for round in 0..FLAP_DEPARTURES as i64 {
            assert_eq!(members.join(&"a", 100 * round, 5000), Ok(true));
            assert!(members.leave(&"a", 100 * round + 50));
        }
        let generation = members.generation();
        assert_eq!(members.join(&"a", 1000, 5000), Err(Cooling { wait_ms: 4950 }));
        assert_eq!(members.generation(), generation, "nothing has changed");
        assert_eq!(members.join(&"b", 1000, 5000), Ok(true), "others may come");
        assert_eq!(members.join(&"a", 5950, 5000), Ok(true));
        assert!(members.leave(&"a", 5960));
        assert_eq!(members.join(&"a", 6000 + FLAP_WINDOW_MS, 5000), Ok(true), "the window has passed");
    }

    proptest! {
        /// The generation rises exactly when the live set changes, and ids stay unique.
        #[test]
        fn the_generation_tells_every_change(events in prop::collection::vec((0u8..4, 0u8..5), 0..100)) {
            let mut members = Members::default();
            for (now, (event, id)) in events.into_iter().enumerate() {
                let now = now as i64;
                let before: Vec<u8> = members.live().copied().collect();
                let generation = members.generation();
                match event {
                    0 => drop(members.join(&id, now, 3)),
                    1 => drop(members.leave(&id, now)),
                    2 => members.renew(&id, now),
                    _ => drop(members.expire(now, 7)),
                }
                let after: Vec<u8> = members.live().copied().collect();
                prop_assert_eq!(before != after, members.generation() == generation + 1);
                prop_assert!(members.generation() - generation <= 1);
                let mut ids: Vec<u8> = members.all().iter().map(|member| member.id).collect();
                ids.sort_unstable();
                prop_assert!(ids.windows(2).all(|pair| pair[0] != pair[1]));
            }
        }
    }
}
