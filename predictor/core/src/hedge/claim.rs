//! The worker's side of a tail: one counter for a pool, and the judgement whether to take more.
//!
//! Members share one counter and change it by atomic additions only: [`CLAIM`] takes the next chunk, [`LEAVE`] says
//! that this member takes no more. Every chunk is taken by exactly one: additions are in one order for all, so each
//! total up to the number of chunks is seen once. And every chunk is taken: a member stops when the chunks are used
//! up, or by leaving, and whoever would be the last to leave must stay.
//!
//! The counter is never set back. What it stood at when an iteration began is what the additions of all iterations
//! before come to, which members tell each other at the barrier: see [`Counter::settle`].

/// Added to claim the next chunk.
pub const CLAIM: i64 = 1;

/// Added to claim no more in this iteration.
pub const LEAVE: i64 = 1 << 32;

/// A pool's counter in one iteration, as a member reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    began_at: i64,
    chunks: usize,
    members: usize,
}

impl Counter {
    /// Of a pool with so many chunks and members, whose counter stood at `began_at` when the iteration began.
    pub fn new(began_at: i64, chunks: usize, members: usize) -> Self {
        Self { began_at, chunks, members }
    }

    /// The chunk that an addition of [`CLAIM`] took, by the total that it gave; `None`: they are used up.
    pub fn claimed(&self, total: i64) -> Option<usize> {
        let claims = total.wrapping_sub(self.began_at) & (LEAVE - 1);
        usize::try_from(claims - 1).ok().filter(|chunk| *chunk < self.chunks)
    }

    /// Whether a member that added [`LEAVE`] may leave, by the total that this gave; else all others have left, and it must
    /// claim until the chunks are used up.
    pub fn may_leave(&self, total: i64) -> bool {
        let left = total.wrapping_sub(self.began_at) >> 32;
        usize::try_from(left).is_ok_and(|left| left < self.members)
    }

    /// Where the counter stands after an iteration with so many additions of each kind, over all members.
    pub fn settle(began_at: i64, claims: u64, leaves: u64) -> i64 {
        began_at.wrapping_add(claims.cast_signed()).wrapping_add(leaves.cast_signed().wrapping_mul(LEAVE))
    }
}

/// What a member expects of another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peer {
    /// When it will have done its base, in seconds after the begin of the iteration.
    pub base_end_s: f64,
    /// Its speed in samples per second.
    pub speed: f64,
}

/// Whether the others would sooner finish without this member.
///
/// It knows its own pace, which it has just measured, and what the others have done: their bases, and the chunks that are
/// taken and not its own. So it knows how fast they were until it claimed last, less a chunk each that they may not have done
/// yet; before its first claim it has the forecasts. The others will have done what is left after `left / speed`, and the one
/// that comes last up to a chunk later.
#[derive(Debug, Clone)]
pub struct Judge<'a> {
    chunks: &'a [u64],
    members: &'a [Peer],
    /// Which of them it is itself, where it is among them.
    own: Option<usize>,
    /// Samples of the others' bases, and their forecast speed together.
    bases: f64,
    speed: f64,
    /// Chunks that are known to be taken, and when that was known.
    taken: usize,
    at_s: f64,
    /// Samples in them that others took.
    by_others: u64,
    /// Samples in the chunks that are not known to be taken.
    left: u64,
}

impl<'a> Judge<'a> {
    /// Of a member of a pool with these chunks and these other members.
    pub fn new(chunks: &'a [u64], others: &'a [Peer]) -> Self {
        Self::of(chunks, others, None)
    }

    /// Of one member, by its number among all members.
    pub fn of_member(chunks: &'a [u64], members: &'a [Peer], own: usize) -> Self {
        Self::of(chunks, members, Some(own))
    }

    fn of(chunks: &'a [u64], members: &'a [Peer], own: Option<usize>) -> Self {
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

    /// Takes note that this member took chunk `index`, and that all before it were taken, `at_s` seconds after the begin of the
    /// iteration.
    pub fn saw(&mut self, index: usize, at_s: f64) {
        let Some(news) = self.chunks.get(self.taken..=index) else { return };
        let samples: u64 = news.iter().sum();
        self.left -= samples;
        self.by_others += samples - self.chunks[index];
        self.taken = index + 1;
        self.at_s = at_s;
    }

    /// Whether every chunk is known to be taken.
    pub fn is_empty(&self) -> bool {
        self.taken == self.chunks.len()
    }

    /// Whether to leave the rest to the others. `pace_s` is this member's time for a sample in this iteration, `claim_s` what
    /// a claim takes.
    pub fn declines(&self, now_s: f64, pace_s: f64, claim_s: f64) -> bool {
        let others = (self.members.len() - usize::from(self.own.is_some())) as f64;
        if others == 0.0 {
            return false;
        }
        let (speed, done) = if self.by_others > 0 {
            let in_flight = others * self.chunks[self.taken - 1] as f64;
            let speed = (self.bases + self.by_others as f64 - in_flight).max(1.0) / self.at_s;
            (speed, speed * (now_s - self.at_s))
        } else {
            let done = |peer: &Peer| peer.speed * (now_s - peer.base_end_s).max(0.0);
            (self.speed, self.others().map(done).sum())
        };
        let left = (self.left as f64 - done).max(0.0);
        let next = self.chunk_at(left);
        claim_s + pace_s * next > (left + others * next) / speed
    }

    /// The chunk that comes next where so many samples are left.
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

    /// One member's steps within an iteration.
    #[derive(Clone, Copy, PartialEq)]
    enum Member {
        Claiming,
        Bound,
        Done,
    }

    proptest! {
        /// Whoever acts when, and whoever wants to leave when: each chunk is taken once, over several iterations of a counter
        /// that is never set back.
        #[test]
        fn every_chunk_is_taken_exactly_once(
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
        let mut judge = Judge::of_member(&chunks, &members, 2);
        // A chunk of 20 takes three seconds, or four: the others would need 1.6 s for all 48, and the last of them 2 s more.
        assert!(!judge.declines(1.0, 0.15, 0.0));
        assert!(judge.declines(1.0, 0.2, 0.0));
        assert!(Judge::new(&chunks, &members[..3]).declines(1.0, 0.2, 0.0));
        judge.saw(0, 1.0);
        judge.saw(3, 2.0);
        // In two seconds the others did 30 samples and 20 more, of which 12 may not be done: the last four take them .84 s.
        assert!(judge.declines(2.0, 0.25, 0.0));
        assert!(!judge.declines(2.0, 0.15, 0.0));
        assert!(judge.declines(2.0, 0.15, 0.5), "a claim would take longer than all that is left");
        assert!(!judge.is_empty());
        judge.saw(4, 3.0);
        assert!(judge.is_empty());
        assert!(!Judge::new(&chunks, &[]).declines(0.0, 1e9, 1.0), "nobody else is there");
    }
}
