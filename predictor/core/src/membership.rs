//! The workers of a job: stable ids, leases, and a generation that increases with every change of the set.
//!
//! The set is a pure function of (state, event, time). Joins, leaves and expiries change it, and take effect
//! in the next iteration that is planned. A slow worker is not a failed worker: only a missed lease removes a
//! worker.
//!
//! A worker that joins and leaves repeatedly causes a new plan for all workers each time. After
//! [`FLAP_DEPARTURES`] departures within [`FLAP_WINDOW_MS`] it must wait for [`FLAP_COOLDOWN_MS`] before it can rejoin.

use std::collections::{BTreeMap, VecDeque};

/// Number of departures within [`FLAP_WINDOW_MS`] that make a worker a flapping worker.
pub const FLAP_DEPARTURES: usize = 10;
/// Window in which departures count: ten minutes.
pub const FLAP_WINDOW_MS: i64 = 600_000;
/// Time after its last departure for which a flapping worker must wait: one minute. A node that restarts a broken
/// worker in a loop then changes the plans of the others about once a minute at most.
pub const FLAP_COOLDOWN_MS: i64 = 60_000;

/// A flapping worker must wait before it can rejoin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("departed {FLAP_DEPARTURES} times within {} s; can rejoin in {} s", FLAP_WINDOW_MS / 1000, (wait_ms + 999) / 1000)]
pub struct Cooling {
    /// Remaining time to wait, in milliseconds.
    pub wait_ms: i64,
}

/// Membership state of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The worker takes part.
    Live,
    /// The worker left by request.
    Left,
    /// The lease of the worker expired.
    Expired,
}

/// A worker that joined at least once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<Id> {
    /// Stable id of the worker.
    pub id: Id,
    /// Membership state.
    pub state: State,
    /// Time of the last message from the worker, in milliseconds of the caller's clock.
    pub last_seen_ms: i64,
    /// Most recent departures, the oldest first; at most [`FLAP_DEPARTURES`] are kept.
    pub departures_ms: VecDeque<i64>,
}

impl<Id> Member<Id> {
    /// Whether the worker is live and its lease has expired.
    fn is_silent(&self, now_ms: i64, lease_ms: i64) -> bool {
        self.state == State::Live && now_ms.saturating_sub(self.last_seen_ms) > lease_ms
    }

    fn depart(&mut self, state: State, now_ms: i64) {
        self.state = state;
        self.departures_ms.push_back(now_ms);
        while self.departures_ms.len() > FLAP_DEPARTURES {
            self.departures_ms.pop_front();
        }
    }

    /// Returns the remaining time before the worker can rejoin, if it is flapping.
    fn cooling(&self, now_ms: i64) -> Option<Cooling> {
        let recent = self.departures_ms.iter().filter(|at| now_ms.saturating_sub(**at) <= FLAP_WINDOW_MS);
        let wait_ms = self.departures_ms.back()?.saturating_add(FLAP_COOLDOWN_MS).saturating_sub(now_ms);
        (recent.count() >= FLAP_DEPARTURES && wait_ms > 0).then_some(Cooling { wait_ms })
    }
}

/// The workers of a job, in the order of their most recent joins.
///
/// # Examples
/// ```
/// let mut members = evenstep_core::membership::Members::default();
/// members.join(&"node-a/0", 0)?;
/// members.join(&"node-b/0", 500)?;
/// members.renew(&"node-b/0", 90_000);
/// assert_eq!(members.expire(121_000, 120_000), ["node-a/0"]);
/// assert_eq!(members.live().collect::<Vec<_>>(), [&"node-b/0"]);
/// assert_eq!(members.generation(), 3);
/// # Ok::<(), evenstep_core::membership::Cooling>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Members<Id> {
    generation: u64,
    /// Generation of the most recent leave, expiry or [`Members::void`]. Allocations from earlier generations
    /// can contain a worker that has left, or a batch that does not fit into memory.
    departed_generation: u64,
    members: Vec<Member<Id>>,
    /// Position of each member in `members`. A request names every worker, and a search in the list would make
    /// it quadratic in the number of workers.
    positions: BTreeMap<Id, usize>,
}

impl<Id> Default for Members<Id> {
    fn default() -> Self {
        Self { generation: 0, departed_generation: 0, members: Vec::new(), positions: BTreeMap::new() }
    }
}

impl<Id: Clone + Ord> Members<Id> {
    /// Restores a stored set. The caller sets `last_seen_ms` of each live worker when it stores or loads the
    /// set.
    pub fn restore(generation: u64, departed_generation: u64, members: Vec<Member<Id>>) -> Self {
        let positions = members.iter().enumerate().map(|(at, member)| (member.id.clone(), at)).collect();
        Self { generation, departed_generation, members, positions }
    }

    /// Returns the current generation; 0 before the first join.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the generation of the most recent departure; 0 before the first.
    pub fn departed_generation(&self) -> u64 {
        self.departed_generation
    }

    /// Returns all workers that ever joined.
    pub fn all(&self) -> &[Member<Id>] {
        &self.members
    }

    /// Returns the live workers in rank order.
    pub fn live(&self) -> impl Iterator<Item = &Id> {
        self.members.iter().filter(|member| member.state == State::Live).map(|member| &member.id)
    }

    /// Returns the live workers in ascending order, with their ranks.
    pub fn live_by_id(&self) -> Vec<(&Id, usize)> {
        let mut next = 0..;
        let rank = |member: &Member<Id>| if member.state == State::Live { next.next() } else { None };
        let ranks: Vec<Option<usize>> = self.members.iter().map(rank).collect();
        self.positions.iter().filter_map(|(id, at)| Some((id, ranks[*at]?))).collect()
    }

    /// Returns whether a worker ever joined.
    pub fn knows(&self, id: &Id) -> bool {
        self.positions.contains_key(id)
    }

    /// Adds a worker and returns whether that changed the set. If the worker is live, its lease is renewed. A
    /// worker that had left or expired gets the last rank.
    ///
    /// # Errors
    /// [`Cooling`] if the worker is flapping and its last departure is less than [`FLAP_COOLDOWN_MS`] ago. The set
    /// is then unchanged.
    pub fn join(&mut self, id: &Id, now_ms: i64) -> Result<bool, Cooling> {
        let mut departures_ms = VecDeque::new();
        if let Some(&at) = self.positions.get(id) {
            if self.members[at].state == State::Live {
                self.members[at].last_seen_ms = now_ms;
                return Ok(false);
            }
            if let Some(cooling) = self.members[at].cooling(now_ms) {
                return Err(cooling);
            }
            departures_ms = self.members.remove(at).departures_ms;
            for position in self.positions.values_mut().filter(|position| **position > at) {
                *position -= 1;
            }
        }
        self.positions.insert(id.clone(), self.members.len());
        self.members.push(Member { id: id.clone(), state: State::Live, last_seen_ms: now_ms, departures_ms });
        self.generation += 1;
        Ok(true)
    }

    /// Removes a worker and returns whether that changed the set.
    pub fn leave(&mut self, id: &Id, now_ms: i64) -> bool {
        let Some(member) = self.get_mut(id).filter(|member| member.state == State::Live) else {
            return false;
        };
        member.depart(State::Left, now_ms);
        self.depart();
        true
    }

    /// Invalidates the allocations of the current generation, as a departure does. This is needed if they
    /// cannot be carried out, for example because a worker ran out of memory.
    pub fn void(&mut self) {
        self.depart();
    }

    /// Returns whether a worker is live.
    pub fn is_live(&self, id: &Id) -> bool {
        let member = self.positions.get(id).and_then(|at| self.members.get(*at));
        member.is_some_and(|member| member.state == State::Live)
    }

    /// Renews the lease of a worker. A worker that has left or expired does not become live again.
    pub fn renew(&mut self, id: &Id, now_ms: i64) {
        if let Some(member) = self.get_mut(id) {
            member.last_seen_ms = now_ms;
        }
    }

    /// Gives every live worker a full lease. This is needed if workers could not renew their leases for a while.
    pub fn renew_all(&mut self, now_ms: i64) {
        for member in self.members.iter_mut().filter(|member| member.state == State::Live) {
            member.last_seen_ms = now_ms;
        }
    }

    fn get_mut(&mut self, id: &Id) -> Option<&mut Member<Id>> {
        self.members.get_mut(*self.positions.get(id)?)
    }

    /// Whether the lease of a live worker has expired.
    pub fn has_silent(&self, now_ms: i64, lease_ms: i64) -> bool {
        self.members.iter().any(|member| member.is_silent(now_ms, lease_ms))
    }

    /// Removes all workers whose lease has expired and returns them. The generation increases by one for all
    /// of them together.
    pub fn expire(&mut self, now_ms: i64, lease_ms: i64) -> Vec<Id> {
        let mut gone = Vec::new();
        for member in self.members.iter_mut().filter(|member| member.is_silent(now_ms, lease_ms)) {
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
    use std::cell::Cell;
    use std::cmp::Ordering;

    use proptest::prelude::*;

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    }

    /// An id that counts how often it is compared.
    #[derive(Debug, Clone)]
    struct Counted(u64);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other) == Ordering::Equal
        }
    }

    impl Eq for Counted {}

    /// A request that names every worker of a job is not quadratic in the number of workers.
    #[test]
    fn a_worker_is_found_without_a_search_through_all() {
        const WORKERS: u64 = 4096;
        let mut members = Members::default();
        for id in 0..WORKERS {
            members.join(&Counted(id), 0).unwrap();
        }
        COMPARISONS.set(0);
        for id in 0..WORKERS {
            assert!(members.knows(&Counted(id)));
            members.renew(&Counted(id), 1);
        }
        assert!(members.all().iter().all(|member| member.last_seen_ms == 1));
        let each = COMPARISONS.get() / WORKERS;
        assert!(each < 100, "{each} comparisons for each of {WORKERS} workers");
    }

    fn join<'a>(members: &mut Members<&'a str>, id: &'a str, now_ms: i64) -> bool {
        members.join(&id, now_ms).unwrap()
    }

    #[test]
    fn a_job_from_creation_to_deletion() {
        let mut members = Members::default();
        assert!(join(&mut members, "a", 0) && join(&mut members, "b", 0));
        assert!(!join(&mut members, "a", 50), "joining again only renews the lease");
        assert_eq!((members.generation(), members.departed_generation()), (2, 0));
        assert_eq!(members.expire(100, 60), ["b"], "a renewed its lease at 50");
        assert!(!members.leave(&"b", 100), "has already left");
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
        assert_eq!(
            members.live().copied().collect::<Vec<_>>(),
            ["b", "a"],
            "a worker that rejoins gets the last rank"
        );
        assert_eq!(members.generation(), 6);
    }

    #[test]
    fn a_flapping_worker_waits_for_its_cooldown() {
        let mut members = Members::default();
        for round in 0..FLAP_DEPARTURES as i64 {
            assert_eq!(members.join(&"a", 100 * round), Ok(true));
            assert!(members.leave(&"a", 100 * round + 50));
        }
        let generation = members.generation();
        assert_eq!(members.join(&"a", 1000), Err(Cooling { wait_ms: 59_950 }));
        assert_eq!(members.generation(), generation, "nothing has changed");
        assert_eq!(members.join(&"b", 1000), Ok(true), "others can join");
        assert_eq!(members.join(&"a", 60_950), Ok(true));
        assert!(members.leave(&"a", 60_960));
        assert_eq!(members.join(&"a", 61_000 + FLAP_WINDOW_MS), Ok(true), "the window has passed");
    }

    proptest! {
        /// The generation increases exactly when the live set changes, and ids stay unique.
        #[test]
        fn each_membership_change_raises_the_generation(events in prop::collection::vec((0u8..4, 0u8..5), 0..100)) {
            let mut members = Members::default();
            for (now, (event, id)) in events.into_iter().enumerate() {
                let now = now as i64;
                let before: Vec<u8> = members.live().copied().collect();
                let generation = members.generation();
                match event {
                    0 => drop(members.join(&id, now)),
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
                for (at, member) in members.all().iter().enumerate() {
                    prop_assert_eq!(members.positions.get(&member.id), Some(&at));
                }
                prop_assert_eq!(members.positions.len(), ids.len());
            }
        }
    }
}
