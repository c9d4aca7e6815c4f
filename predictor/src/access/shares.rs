//! Fair semaphores: pools of which one token cannot take all.
//!
//! A token holds at most half of what the other tokens leave, rounded up. So one token alone holds at most half of a pool,
//! and each token that holds as much as it can still leaves half of the rest: a further token finds room at once.
//! Clients without a token count as one token. A predictor without tokens (`--auth none`) cannot distinguish clients: each
//! of them may take the whole free part.
//!
//! Requests that wait form one queue for each token. What becomes free goes to the token that holds the least, so a long
//! queue of one token does not delay others.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::caller::Caller;
use super::known::Auth;

/// The ID of a token; `None` for clients without one.
type Holder = Option<Arc<str>>;

/// A pool that tokens share. Clones are the same pool.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Pool>);

/// A part of a pool. It is returned when this is dropped.
#[derive(Debug)]
pub struct Share {
    pool: Arc<Pool>,
    holder: Holder,
    amount: usize,
}

/// The share of a token, or the whole pool, is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Full {
    what: &'static str,
    capacity: usize,
    /// The token and the amount that it holds; `None` if each client may use the whole pool.
    own: Option<(Holder, usize)>,
}

#[derive(Debug)]
struct Pool {
    /// Plural of the things that it has, for messages.
    what: &'static str,
    capacity: usize,
    has_shares: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Amount that each token holds. Only tokens that hold something have an entry.
    held: BTreeMap<Holder, usize>,
    /// The sum of these amounts.
    in_use: usize,
    /// The requests that wait, by the order in which they came. Only tokens with such requests have an entry.
    waiting: BTreeMap<Holder, BTreeMap<u64, Waiting>>,
    /// The number of requests that have waited.
    tickets: u64,
}

#[derive(Debug)]
struct Waiting {
    amount: usize,
    granted: oneshot::Sender<Share>,
}

/// The place of a request in the queue of its token. It is left when this is dropped.
#[derive(Debug)]
struct Place<'a> {
    pool: &'a Arc<Pool>,
    holder: &'a Holder,
    ticket: u64,
}

impl Shares {
    /// A pool of `capacity` things. `what` is their plural, for messages.
    pub fn new(auth: Auth, capacity: usize, what: &'static str) -> Self {
        Self(Arc::new(Pool { what, capacity, has_shares: auth != Auth::None, state: Mutex::default() }))
    }

    /// Amount in use.
    pub fn in_use(&self) -> usize {
        self.0.lock().in_use
    }

    /// Takes a part for a client, if it is free and no other request of its token waits.
    ///
    /// # Errors
    /// The token's share, or the pool, is in use.
    pub fn try_take(&self, caller: &Caller, amount: usize) -> Result<Share, Full> {
        self.0.try_take(caller.token(), amount)
    }

    /// Takes a part for a client. Waits at most `patience`; with a patience of zero, it does not enter the queue.
    ///
    /// # Errors
    /// See [`Shares::try_take`].
    pub async fn take(&self, caller: &Caller, amount: usize, patience: Duration) -> Result<Share, Full> {
        let holder = caller.token();
        let tried = self.0.try_take(holder, amount);
        // In the queue, it would delay smaller requests of its token.
        if tried.is_ok() || patience.is_zero() {
            return tried;
        }
        let taken = tokio::time::timeout(patience, self.0.wait(holder, amount)).await;
        taken.ok().flatten().ok_or_else(|| self.0.full(holder))
    }
}

impl Pool {
    fn try_take(self: &Arc<Self>, holder: &Holder, amount: usize) -> Result<Share, Full> {
        let mut state = self.lock();
        if state.waiting.contains_key(holder) || !self.has_room(&state, holder, amount) {
            drop(state);
            return Err(self.full(holder));
        }
        Ok(self.give(&mut state, holder.clone(), amount))
    }

    /// Waits for a part. The result is `None` only if the pool has ended, which a [`Share`] or [`Shares`] prevents.
    async fn wait(self: &Arc<Self>, holder: &Holder, amount: usize) -> Option<Share> {
        let (granted, grant) = oneshot::channel();
        let ticket = {
            let mut state = self.lock();
            let ticket = state.tickets;
            state.tickets += 1;
            state.waiting.entry(holder.clone()).or_default().insert(ticket, Waiting { amount, granted });
            ticket
        };
        let _place = Place { pool: self, holder, ticket };
        // Something may have become free since it was tried.
        self.serve(self.lock());
        grant.await.ok()
    }

    /// Whether a token may take this amount.
    fn has_room(&self, state: &State, holder: &Holder, amount: usize) -> bool {
        let held = state.held.get(holder).copied().unwrap_or_default();
        let left = self.capacity - (state.in_use - held);
        let share = if self.has_shares { left.div_ceil(2) } else { left };
        amount <= share.saturating_sub(held)
    }

    fn give(self: &Arc<Self>, state: &mut State, holder: Holder, amount: usize) -> Share {
        *state.held.entry(holder.clone()).or_default() += amount;
        state.in_use += amount;
        Share { pool: self.clone(), holder, amount }
    }

    /// Serves requests that wait, as far as the pool and the shares allow.
    fn serve(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let mut served = Vec::new();
        while let Some((holder, ticket)) = self.next(&state) {
            let Some(waiting) = state.remove(&holder, ticket) else { break };
            served.push((waiting.granted, self.give(&mut state, holder, waiting.amount)));
        }
        drop(state);
        for (granted, share) in served {
            // If the request has left, this drops its part, which takes the lock again.
            drop(granted.send(share));
        }
    }

    /// The request that is next: the first one of the token that holds the least.
    fn next(&self, state: &State) -> Option<(Holder, u64)> {
        let first = state.waiting.iter().filter_map(|(holder, queue)| {
            let (ticket, waiting) = queue.first_key_value()?;
            let held = state.held.get(holder).copied().unwrap_or_default();
            self.has_room(state, holder, waiting.amount).then_some((held, *ticket, holder))
        });
        first.min().map(|(_, ticket, holder)| (holder.clone(), ticket))
    }

    fn full(&self, holder: &Holder) -> Full {
        let held = || self.lock().held.get(holder).copied().unwrap_or_default();
        let own = self.has_shares.then(|| (holder.clone(), held()));
        Full { what: self.what, capacity: self.capacity, own }
    }

    /// Every change leaves the value valid, so a panic of another thread does no harm.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, holder: &Holder, ticket: u64) -> Option<Waiting> {
        let queue = self.waiting.get_mut(holder)?;
        let waiting = queue.remove(&ticket);
        if queue.is_empty() {
            self.waiting.remove(holder);
        }
        waiting
    }
}

impl Share {
    /// Adds another part of the same token to this one.
    pub fn merge(&mut self, mut other: Self) {
        self.amount += std::mem::take(&mut other.amount);
    }

    /// The amount.
    pub fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.in_use -= self.amount;
        if let Some(held) = state.held.get_mut(&self.holder) {
            *held -= self.amount;
            if *held == 0 {
                state.held.remove(&self.holder);
            }
        }
        self.pool.serve(state);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        if state.remove(self.holder, self.ticket).is_some() {
            // The next request of the token may need less.
            self.pool.serve(state);
        }
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, capacity, own } = self;
        let Some((holder, held)) = own else {
            return write!(f, "all {capacity} {what} are in use; retry later");
        };
        match holder {
            Some(token_id) => write!(f, "the token {token_id} holds")?,
            None => write!(f, "clients without a token hold")?,
        }
        write!(f, " {held} of {capacity} {what}, and a token gets half of what the others leave; retry later")
    }
}

#[cfg(test)]
mod tests;
