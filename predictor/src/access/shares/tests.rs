use std::pin::Pin;

use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::super::pattern::JobPattern;
use super::*;

/// Longer than the test.
const PATIENCE: Duration = Duration::from_secs(3600);

fn token(number: usize) -> Caller {
    Caller::with_token(format!("{number}").into(), &[], JobPattern::all())
}

/// A step of a client of the token with this number.
#[derive(Debug, Clone)]
enum Step {
    /// Takes this amount if it is free.
    Take(usize, usize),
    /// Waits for this amount.
    Wait(usize, usize),
    /// Returns the part at this place of the list.
    Return(usize),
    /// Stops waiting at this place of the list.
    Leave(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (token, amount) = (0..5_usize, 1..6_usize);
    prop_oneof![
        (token.clone(), amount.clone()).prop_map(|(token, amount)| Step::Take(token, amount)),
        (token, amount).prop_map(|(token, amount)| Step::Wait(token, amount)),
        any::<usize>().prop_map(Step::Return),
        any::<usize>().prop_map(Step::Leave),
    ]
}

/// A request that waits, with its token and amount.
type Request = (usize, usize, Pin<Box<dyn Future<Output = Result<Share, Full>>>>);

struct World {
    shares: Shares,
    capacity: usize,
    /// Each part with its token.
    taken: Vec<(usize, Share)>,
    waiting: Vec<Request>,
}

impl World {
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Take(number, amount) => {
                if let Ok(share) = self.shares.try_take(&token(number), amount) {
                    self.taken.push((number, share));
                }
            }
            Step::Wait(number, amount) => {
                let shares = self.shares.clone();
                let request = async move { shares.take(&token(number), amount, PATIENCE).await };
                self.waiting.push((number, amount, Box::pin(request)));
            }
            Step::Return(at) if !self.taken.is_empty() => {
                drop(self.taken.swap_remove(at % self.taken.len()));
            }
            Step::Leave(at) if !self.waiting.is_empty() => {
                drop(self.waiting.remove(at % self.waiting.len()));
            }
            Step::Return(_) | Step::Leave(_) => {}
        }
        // What a request got is counted at once; the request learns it when it is polled.
        let mut still = Vec::new();
        for (number, amount, mut request) in self.waiting.drain(..) {
            match request.as_mut().now_or_never() {
                Some(share) => self.taken.push((number, share.unwrap())),
                None => still.push((number, amount, request)),
            }
        }
        self.waiting = still;
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut held = BTreeMap::new();
        for (number, share) in &self.taken {
            *held.entry(*number).or_insert(0) += share.amount();
        }
        let in_use: usize = held.values().sum();
        prop_assert_eq!(self.shares.in_use(), in_use, "the parts, and their sum in the pool");
        prop_assert!(in_use <= self.capacity);
        prop_assert!(held.values().all(|held| *held <= self.capacity.div_ceil(2)), "{:?}", held);
        let left = self.capacity >> held.len().min(63);
        prop_assert!(self.capacity - in_use >= left, "each token leaves half of the rest: {:?}", held);
        let mut served = std::collections::BTreeSet::new();
        for (number, amount, _) in &self.waiting {
            let own = held.get(number).copied().unwrap_or_default();
            let most = (self.capacity - (in_use - own)).div_ceil(2);
            let is_first = served.insert(*number);
            prop_assert!(!is_first || own + amount > most, "a request waits although its part is free");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn no_token_exceeds_its_share_and_everything_is_returned(
        capacity in 1..40_usize,
        steps in prop::collection::vec(step(), 0..80),
    ) {
        // Requests that wait have a time limit, which needs a runtime.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let shares = Shares::new(Auth::Required, capacity, "places");
        let mut world = World { shares, capacity, taken: Vec::new(), waiting: Vec::new() };
        for step in &steps {
            world.step(step);
            world.check()?;
        }
        // Requests that are possible at all are served in the end.
        while !world.taken.is_empty() {
            world.step(&Step::Return(0));
            world.check()?;
        }
        let is_behind_a_large_one = |number: &usize| {
            let first = world.waiting.iter().find(|(of, ..)| of == number);
            first.is_some_and(|(_, amount, _)| *amount > capacity.div_ceil(2))
        };
        prop_assert!(world.waiting.iter().all(|(number, ..)| is_behind_a_large_one(number)));
        world.waiting.clear();
        let state = world.shares.0.lock();
        prop_assert!(state.in_use == 0 && state.held.is_empty() && state.waiting.is_empty(), "{:?}", *state);
    }
}

#[test]
fn a_long_queue_of_one_token_does_not_delay_another() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let shares = Shares::new(Auth::Required, 8, "places");
    let (one, other) = (token(1), token(2));
    let take = |number, amount| shares.try_take(&token(number), amount).unwrap();
    let (half, _rest) = (take(3, 2), [take(3, 2), take(4, 2), take(1, 1), take(5, 1)]);
    let mut queue: Vec<_> = (0..100).map(|_| Box::pin(shares.take(&one, 1, PATIENCE))).collect();
    assert!(queue.iter_mut().all(|request| request.now_or_never().is_none()));
    let mut late = Box::pin(shares.take(&other, 1, PATIENCE));
    assert!((&mut late).now_or_never().is_none());
    drop(half);
    let late = late.now_or_never();
    assert!(late.as_ref().is_some_and(Result::is_ok), "it holds nothing, and the other one");
    assert!(queue.iter_mut().all(|request| request.now_or_never().is_none()));
    drop(late);
    let first = (&mut queue[0]).now_or_never();
    assert!(first.as_ref().is_some_and(Result::is_ok), "in order");
    assert!(queue[1..].iter_mut().all(|request| request.now_or_never().is_none()));
}

#[test]
fn a_request_without_patience_does_not_wait() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let shares = Shares::new(Auth::Required, 8, "places");
    let one = token(1);
    let mut large = Box::pin(shares.take(&one, 5, Duration::ZERO));
    assert!((&mut large).now_or_never().is_some_and(|taken| taken.is_err()));
    let small = shares.take(&one, 4, Duration::ZERO).now_or_never();
    assert!(small.is_some_and(|taken| taken.is_ok()), "the large one is not in the queue");
}

#[test]
fn without_tokens_a_client_may_take_all() {
    let shares = Shares::new(Auth::None, 4, "places");
    let anonymous = Caller::anonymous(&[]);
    let all = shares.try_take(&anonymous, 4).unwrap();
    let full = shares.try_take(&anonymous, 1).unwrap_err();
    assert_eq!(full.to_string(), "all 4 places are in use; retry later");
    drop(all);
    let shares = Shares::new(Auth::Required, 4, "places");
    let half = [&anonymous, &token(7)].map(|caller| shares.try_take(caller, 2).map(|share| share.amount()));
    assert_eq!(half, [Ok(2), Ok(2)], "they count as one token");
    let _half = shares.try_take(&token(7), 2).unwrap();
    let full = shares.try_take(&token(7), 1).unwrap_err();
    assert_eq!(
        full.to_string(),
        "the token 7 holds 2 of 4 places, and a token gets half of what the others leave; retry later"
    );
}
