//! The worker's side of a tail: the shared counter of a pool, and the decision whether to claim another
//! chunk.
//!
//! The members of a pool share one counter and change it by atomic additions only. [`CLAIM`] claims the next
//! chunk. [`LEAVE`] announces that this member claims no more chunks.
//!
//! Each chunk is claimed by exactly one member: additions have one order for all members, so each total up to
//! the number of chunks occurs once. All chunks are claimed: a member stops when the chunks are used up or by
//! leaving, and the last remaining member must not leave.
//!
//! The counter is never reset. Its value at the beginning of an iteration is the sum of the additions in all
//! earlier iterations. The members exchange their numbers of additions at the barrier: see
//! [`Counter::settle`].

use std::borrow::Cow;

/// Addition that claims the next chunk.
pub const CLAIM: i64 = 1;

/// Addition that announces that a member claims no more chunks in this iteration.
pub const LEAVE: i64 = 1 << 32;

/// Counter of a pool in one iteration, as a member reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    began_at: i64,
    chunks: usize,
    members: usize,
}

impl Counter {
    /// Returns the counter of a pool with these numbers of chunks and members. `began_at` is its value at the
    /// beginning of the iteration.
    pub fn new(began_at: i64, chunks: usize, members: usize) -> Self {
        Self { began_at, chunks, members }
    }

    /// Returns the index of the chunk that an addition of [`CLAIM`] claimed, given the total after the
    /// addition; `None` if the chunks are used up.
    pub fn claimed(&self, total: i64) -> Option<usize> {
        let claims = total.wrapping_sub(self.began_at) & (LEAVE - 1);
        usize::try_from(claims - 1).ok().filter(|chunk| *chunk < self.chunks)
    }

    /// Returns whether a member that added [`LEAVE`] may leave, given the total after the addition. If not,
    /// all other members have left, and this one must claim until the chunks are used up.
    pub fn may_leave(&self, total: i64) -> bool {
        let left = total.wrapping_sub(self.began_at) >> 32;
        usize::try_from(left).is_ok_and(|left| left < self.members)
    }

    /// Returns the counter's value after an iteration with these numbers of additions by all members.
    pub fn settle(began_at: i64, claims: u64, leaves: u64) -> i64 {
        began_at.wrapping_add(claims.cast_signed()).wrapping_add(leaves.cast_signed().wrapping_mul(LEAVE))
    }
}

/// Expected progress of another member.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peer {
    /// Expected end of its base, in seconds after the beginning of the iteration.
    pub base_end_s: f64,
    /// Speed in samples per second.
    pub speed: f64,
}

/// Decides whether the other members would finish sooner without this member.
///
/// This member has measured its own seconds per sample. Of the others it knows the bases and the chunks that
/// it did not claim itself. From these it estimates their joint speed up to its own last claim, assuming that
/// each has one chunk still in progress. Before its first claim it uses the forecast speeds.
///
/// The others will finish the remaining samples after `left / speed`, and the last of them up to one chunk
/// later.
#[derive(Debug, Clone)]
pub struct ClaimPolicy<'a> {
    chunks: Cow<'a, [u64]>,
    members: Cow<'a, [Peer]>,
    /// Index of this member, if `members` includes it.
    own: Option<usize>,
    /// Sum of the samples of the others' bases, and the sum of their forecast speeds.
    bases: f64,
    speed: f64,
    /// Number of chunks known to be claimed, and the time of that information.
    taken: usize,
    at_s: f64,
    /// Samples in these chunks that others claimed.
    by_others: u64,
    /// Samples in the chunks that are not known to be claimed.
    left: u64,
}

impl<'a> ClaimPolicy<'a> {
    /// Returns the judge of a member of a pool with these chunks and these other members.
    pub fn new(chunks: impl Into<Cow<'a, [u64]>>, others: impl Into<Cow<'a, [Peer]>>) -> Self {
        Self::of(chunks.into(), others.into(), None)
    }

    /// Returns the judge of one member, given by its index among all members.
    pub fn of_member(chunks: &'a [u64], members: &'a [Peer], own: usize) -> Self {
        Self::of(chunks.into(), members.into(), Some(own))
    }

    fn of(chunks: Cow<'a, [u64]>, members: Cow<'a, [Peer]>, own: Option<usize>) -> Self {
        let left = chunks.iter().sum();
        let mut judge =
            Self { chunks, members, own, bases: 0.0, speed: 0.0, taken: 0, at_s: 0.0, by_others: 0, left };
        judge.speed = judge.others().map(|peer| peer.speed).sum();
        judge.bases = judge.others().map(|peer| peer.speed * peer.base_end_s).sum();
        judge
    }

    fn others(&self) -> impl Iterator<Item = &Peer> {
        self.members.iter().enumerate().filter(|(at, _)| Some(*at) != self.own).map(|(_, peer)| peer)
    }

    /// Records that this member claimed chunk `index`, so that all chunks before it were claimed. `at_s` is
    /// the time in seconds after the beginning of the iteration.
    pub fn record_claim(&mut self, index: usize, at_s: f64) {
        let Some(news) = self.chunks.get(self.taken..=index) else { return };
        let samples: u64 = news.iter().sum();
        self.left -= samples;
        self.by_others += samples - self.chunks[index];
        self.taken = index + 1;
        self.at_s = at_s;
    }

    /// Returns whether all chunks are known to be claimed.
    pub fn is_empty(&self) -> bool {
        self.taken == self.chunks.len()
    }

    /// Returns whether to leave the remaining chunks to the others. `pace_s` is this member's time per sample
    /// in this iteration, and `claim_s` the time of a claim, both in seconds.
    pub fn should_leave(&self, now_s: f64, pace_s: f64, claim_s: f64) -> bool {
        let others = (self.members.len() - usize::from(self.own.is_some())) as f64;
        if others == 0.0 {
            return false;
        }
        let (speed, done) = if self.by_others > 0 {
            let in_flight = others * self.chunks[self.taken - 1] as f64;
            let speed = (self.bases + self.by_others as f64 - in_flight).max(1.0) / self.at_s.max(1e-9);
            (speed, speed * (now_s - self.at_s))
        } else {
            let done = |peer: &Peer| peer.speed * (now_s - peer.base_end_s).max(0.0);
            (self.speed, self.others().map(done).sum())
        };
        let left = (self.left as f64 - done).max(0.0);
        let next = self.chunk_at(left);
        claim_s + pace_s * next > (left + others * next) / speed
    }

    /// Returns the size of the next chunk when `left` samples remain.
    fn chunk_at(&self, left: f64) -> f64 {
        let mut after = self.left as f64;
        let mut next = 0.0;
        for chunk in &self.chunks[self.taken..] {
            next = *chunk as f64;
            after -= next;
            if after < left {
                break;
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// State of a member within an iteration.
    #[derive(Clone, Copy, PartialEq)]
    enum Member {
        Claiming,
        Bound,
        Done,
    }

    proptest! {
        /// With any order of actions, and with members that leave at any time, each chunk is claimed exactly
        /// once. This holds over several iterations of a counter that is never reset.
        #[test]
        fn every_chunk_is_claimed_exactly_once(
            chunks in 0usize..20, members in 1usize..6, began_at in any::<i64>(),
            acts in prop::collection::vec((0usize..6, any::<bool>()), 300),
        ) {
            let mut total = began_at;
            let mut acts = acts.into_iter().cycle();
            for _ in 0..3 {
                let (began_at, mut claims, mut leaves) = (total, 0, 0);
                let counter = Counter::new(began_at, chunks, members);
                let mut taken = vec![0; chunks];
                let mut states = vec![Member::Claiming; members];
                while let Some(at) = states.iter().position(|state| *state != Member::Done) {
                    let (who, wants_to_leave) = acts.next().unwrap();
                    let who = if who < members && states[who] != Member::Done { who } else { at };
                    if wants_to_leave && states[who] == Member::Claiming {
                        total = total.wrapping_add(LEAVE);
                        leaves += 1;
                        states[who] = if counter.may_leave(total) { Member::Done } else { Member::Bound };
                    } else {
                        total = total.wrapping_add(CLAIM);
                        claims += 1;
                        match counter.claimed(total) {
                            Some(chunk) => taken[chunk] += 1,
                            None => states[who] = Member::Done,
                        }
                    }
                }
                prop_assert!(taken.iter().all(|times| *times == 1), "{taken:?}");
                prop_assert_eq!(Counter::settle(began_at, claims, leaves), total);
            }
        }
    }

    #[test]
    fn the_slow_decline_at_the_end_and_the_fast_do_not() {
        let members = [Peer { base_end_s: 1.0, speed: 10.0 }; 4];
        let chunks = [20, 10, 10, 4, 4];
        let mut judge = ClaimPolicy::of_member(&chunks, &members, 2);
        // A chunk of 20 takes 3 s or 4 s. The others would need 1.6 s for all 48 samples, and the last of
        // them 2 s more.
        assert!(!judge.should_leave(1.0, 0.15, 0.0));
        assert!(judge.should_leave(1.0, 0.2, 0.0));
        assert!(ClaimPolicy::new(&chunks, &members[..3]).should_leave(1.0, 0.2, 0.0));
        judge.record_claim(0, 1.0);
        judge.record_claim(3, 2.0);
        // In 2 s the others did 30 samples and 20 more, of which 12 may not be done yet. The last four
        // samples take them 0.84 s.
        assert!(judge.should_leave(2.0, 0.25, 0.0));
        assert!(!judge.should_leave(2.0, 0.15, 0.0));
        assert!(judge.should_leave(2.0, 0.15, 0.5), "a claim would take longer than the remaining samples");
        assert!(!judge.is_empty());
        judge.record_claim(4, 3.0);
        assert!(judge.is_empty());
        assert!(!ClaimPolicy::new(&chunks, &[]).should_leave(0.0, 1e9, 1.0), "the pool has no other member");
    }
}
