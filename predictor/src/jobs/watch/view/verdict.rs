//! The verdict on a job: whether planned shares pay, who is slow and why, and how good the forecast is.
//!
//! Times are durations, because the predictor does not know the time zone of its readers.

use evenstep_protocol::{GainView, JobState};

use super::super::account::{Account, ITERATIONS_MIN};
use super::super::seen::Seen;
use super::super::status::Status;
use crate::clock::Now;
use crate::number_format::{age, rough, span, times, whole};

/// Gain from which on planned shares pay.
const PAYS: f64 = 1.02;
/// Number of compared iterations from which on a job that does not gain is advised to train without a predictor.
const ADVICE_MIN: u64 = 64;
/// Number of latest answers any of which may hold even shares: planned shares are tried for some iterations meanwhile.
const HELD_OVER: usize = 32;

/// Returns the verdict on a job in this state and with this account: one to four short sentences, the most important first.
pub fn verdict(seen: &Seen, status: &Status, account: Option<&Account>, now: Now) -> String {
    // A text that changes each second would be sent to all readers each second.
    let lasted = |since_unix_ms: i64| match now.unix_ms.saturating_sub(since_unix_ms) {
        ..60_000 => "less than a minute".to_owned(),
        lasted_ms => age(lasted_ms as f64 / 1e3),
    };
    let lasted_for = status.since_unix_ms.map_or_else(String::new, |since| format!(" for {}", lasted(since)));
    let reason = &status.reason;
    let state = match status.state {
        JobState::Running | JobState::Finished => None,
        JobState::Starting => Some(format!("Starting: {reason}.")),
        JobState::Paused => {
            Some(format!("Paused{lasted_for}: {reason}. It continues when enough workers have joined."))
        }
        JobState::Stalled => Some(format!("Stalled{lasted_for}: {reason}. Read the logs of the workers.")),
        JobState::Failed => Some(format!("Failed: {reason}. Read the log of that worker.")),
        JobState::Unreadable => Some(format!("Unreadable: {reason}.")),
    };
    let has_ended = matches!(status.state, JobState::Finished | JobState::Failed);
    let mut sentences: Vec<String> = state.into_iter().collect();
    if has_ended || status.state == JobState::Running {
        sentences.extend(gain(seen, account, status.state));
    }
    if !has_ended {
        sentences.extend(overrides(seen));
    }
    if status.state == JobState::Running {
        sentences.extend(slow(seen, lasted));
    }
    let forecast = seen.means().and_then(|means| means.error_ratio);
    if let Some(error) = forecast.filter(|_| status.state == JobState::Running || has_ended) {
        sentences.push(format!("Forecast off by {}.", rough(error)));
    }
    sentences.join(" ")
}

/// The gain. A failed job without one is not compared.
fn gain(seen: &Seen, account: Option<&Account>, state: JobState) -> Option<String> {
    let finished = if state == JobState::Finished { "Finished: " } else { "" };
    let Some(account) = account else { return Some("The gain is not known yet.".to_owned()) };
    let Some(GainView { ratio, lower, upper, iterations }) = account.gain() else {
        let estimated = account.estimated();
        let said = format!(
            "{finished}{} of {ITERATIONS_MIN} iterations compared with even shares",
            estimated.min(ITERATIONS_MIN)
        );
        return match state {
            JobState::Failed => None,
            JobState::Finished => Some(said + ", too few for a gain."),
            _ => Some(said + ": too early to tell the gain."),
        };
    };
    let interval = format!("({} to {})", times(lower), times(upper));
    let is_past = !finished.is_empty() || state == JobState::Failed;
    let even = !is_past && seen.steps.iter().rev().take(HELD_OVER).any(|step| step.answer().holds_even());
    let said = if even {
        format!("Even shares, because planned ones were not faster {interval}.")
    } else if lower > 1.0 && ratio >= PAYS {
        let saved = if is_past { saved(account) } else { " so far".to_owned() };
        format!("{finished}{}x as fast as even shares {interval}{saved}.", times(ratio))
    } else {
        let compared = match (lower, upper) {
            (_, ..1.0) => "slower than",
            (1.0.., _) => "hardly faster than",
            (_, ..PAYS) => "not faster than",
            _ if is_past => "not certain whether faster than",
            _ => "not certain yet whether faster than",
        };
        let is_certain = upper < PAYS && iterations >= ADVICE_MIN;
        let advice =
            if is_certain && !is_past { "; EVENSTEP_SERVER=off trains without a predictor" } else { "" };
        format!("{finished}{compared} even shares {interval}{advice}.")
    };
    Some(capitalized(&said))
}

/// The time that a job saved which has ended.
fn saved(account: &Account) -> String {
    account.saved().map_or_else(String::new, |saved| format!(", {} saved", span(saved.seconds)))
}

/// The override of an operator, and how to undo it.
fn overrides(seen: &Seen) -> Option<String> {
    let members = seen.members.as_ref()?;
    let (worker, wanted) = members.overrides.iter().next()?;
    let what = match wanted.pinned_local_batch.filter(|_| !wanted.paused) {
        Some(batch) => format!("pinned to {} {}", whole(batch), members.unit),
        None => "paused".to_owned(),
    };
    let more = match members.overrides.len() - 1 {
        0 => String::new(),
        more => format!(" ({} more overridden)", whole(more as u64)),
    };
    Some(format!("{worker} is {what} by an operator{more}: delete the override to undo it."))
}

/// The slowest worker, and why.
fn slow(seen: &Seen, lasted: impl Fn(i64) -> String) -> Option<String> {
    let (worker, slowest) =
        seen.slow.iter().min_by(|one, other| one.1.speed_ratio.total_cmp(&other.1.speed_ratio))?;
    let since =
        seen.slow_since.get(worker).map_or_else(String::new, |since| format!(" for {}", lasted(*since)));
    let more = match seen.slow.len() - 1 {
        0 => String::new(),
        more => format!("; {} more slow", whole(more as u64)),
    };
    Some(format!(
        "{worker} has been at {} of its usual speed{since}: {}{more}.",
        rough(slowest.speed_ratio),
        slowest.detail
    ))
}

fn capitalized(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use evenstep_protocol::{AllocateResponse, StragglerReason, StragglerView, WorkerId, WorkerOverride};
    use evenstep_store::StoredPast;
    use proptest::prelude::*;

    use super::super::super::account::{EvenStep, IterationTimes};
    use super::super::super::seen::MembersSummary;
    use super::super::super::status::Facts;
    use super::super::super::steps::Means;
    use super::super::super::totals::Totals;
    use super::*;

    const NOW: Now = Now { unix_ms: 1_000_000, steady_ms: 1_000_000 };

    fn worker(name: &str) -> WorkerId {
        WorkerId::new(name).unwrap()
    }

    /// A running job of four workers, `iterations` of which took a second instead of `even_s`.
    fn seen(iterations: u64, even_s: f64) -> Seen {
        let past = StoredPast { joined: 4, reported: Some((iterations, 999_000)), ..StoredPast::default() };
        let facts = Facts { live: 4, min_workers: 2, past, active_ms: 999_000, ..Facts::default() };
        let mut account = Account::default();
        let even = Some(EvenStep { even_s, doubt_s: 0.01 });
        for _ in 0..iterations {
            account.add(IterationTimes { took_s: 1.0, even, ..IterationTimes::default() }, 1.0);
        }
        let means = Means { step_time_s: 1.0, samples_per_s: 64.0, error_ratio: Some(0.031) };
        let overrides = BTreeMap::new();
        Seen {
            facts,
            account,
            earlier: Some(Totals::none()),
            means: Some(means).filter(|_| iterations > 0),
            members: Some(MembersSummary {
                live: 4,
                departed: 0,
                global_batch: 64,
                unit: "tokens".into(),
                overrides,
            }),
            ..Seen::default()
        }
    }

    fn said(seen: &Seen) -> String {
        verdict(seen, &seen.status(NOW), seen.account().as_ref(), NOW)
    }

    fn slowed(seen: &mut Seen, name: &str, speed_ratio: f64) {
        let detail = "it waits for a core 40 % of the time".to_owned();
        let view =
            StragglerView { reason: StragglerReason::CpuContention, speed_ratio, since_iteration: 3, detail };
        seen.slow.insert(worker(name), view);
        seen.slow_since.insert(worker(name), 280_000);
    }

    #[test]
    fn a_running_job_tells_gain_slow_workers_and_forecast() {
        assert_eq!(
            said(&seen(5, 1.6)),
            "5 of 8 iterations compared with even shares: too early to tell the gain. Forecast off by 3 %."
        );
        let mut job = seen(64, 1.6);
        let gain = "1.60x as fast as even shares (1.58 to 1.62) so far.";
        assert_eq!(said(&job), format!("{gain} Forecast off by 3 %."));
        slowed(&mut job, "node-b/0", 0.45);
        let slow =
            "node-b/0 has been at 45 % of its usual speed for 12 min: it waits for a core 40 % of the time";
        assert_eq!(said(&job), format!("{gain} {slow}. Forecast off by 3 %."));
        slowed(&mut job, "node-a/0", 0.7);
        let pin = WorkerOverride {
            paused: false,
            pinned_local_batch: Some(2_048),
            min_local_batch: None,
            max_local_batch: None,
        };
        let overrides = &mut job.members.as_mut().unwrap().overrides;
        overrides.insert(worker("node-a/1"), pin.clone());
        let pinned = "node-a/1 is pinned to 2,048 tokens by an operator";
        let undo = ": delete the override to undo it.";
        assert_eq!(said(&job), format!("{gain} {pinned}{undo} {slow}; 1 more slow. Forecast off by 3 %."));
        let overrides = &mut job.members.as_mut().unwrap().overrides;
        overrides.insert(worker("node-a/2"), WorkerOverride { paused: true, ..pin });
        assert!(said(&job).contains(&format!("{pinned} (1 more overridden){undo}")), "{}", said(&job));
        job.members.as_mut().unwrap().overrides.remove(&worker("node-a/1"));
        assert!(said(&job).contains(&format!("node-a/2 is paused by an operator{undo}")), "{}", said(&job));
        job.earlier = None;
        assert!(said(&job).starts_with("The gain is not known yet. "), "{}", said(&job));
    }

    #[test]
    fn a_gain_below_the_smallest_that_pays_is_none() {
        let advice = "; EVENSTEP_SERVER=off trains without a predictor. Forecast off by 3 %.";
        assert_eq!(said(&seen(64, 0.995)), format!("Not faster than even shares (0.98 to 1.01){advice}"));
        assert_eq!(said(&seen(64, 0.9)), format!("Slower than even shares (0.88 to 0.92){advice}"));
        let plain = ". Forecast off by 3 %.";
        assert_eq!(said(&seen(63, 0.9)), format!("Slower than even shares (0.88 to 0.92){plain}"));
        assert_eq!(said(&seen(64, 1.018)), format!("Hardly faster than even shares (1.00 to 1.03){plain}"));
        let mut unclear = seen(64, 1.3);
        for _ in 0..9 {
            let even = Some(EvenStep { even_s: 1.3, doubt_s: 4.0 });
            unclear.account.add(IterationTimes { took_s: 1.0, even, ..IterationTimes::default() }, 1.0);
        }
        let between = "whether faster than even shares (0.47 to 2.13)";
        assert_eq!(said(&unclear), format!("Not certain yet {between}{plain}"));
        unclear.facts.live = 0;
        assert_eq!(said(&unclear), format!("Finished: not certain {between}{plain}"));
    }

    /// Even shares are held, and planned ones are tried for 8 iterations now and then.
    #[test]
    fn trials_of_planned_shares_do_not_change_the_verdict() {
        let answer = |iteration: u64, held: Option<u64>| {
            Arc::new(serde_json::from_value::<AllocateResponse>(serde_json::json!({
                "job_id": "job", "generation": 1, "iteration": iteration, "global_batch": 64,
                "allocations": [{"worker": "w/0", "rank": 0, "local_batch": 64, "offset": 0, "gradient_weight": 1.0,
                    "held_batch": held}],
                "optimizer": {"rule": "none", "lr_multiplier": 1.0, "momentum_buffer_scale": 1.0, "ramp": null},
                "decision": {"kind": "held", "reason": "a test"},
            })).unwrap())
        };
        let mut job = seen(64, 1.0);
        let even = "Even shares, because planned ones were not faster (0.98 to 1.02). Forecast off by 3 %.";
        for iteration in 0..64 {
            job.steps.answered(answer(iteration, (iteration % 12 < 4).then_some(64)), 0);
            assert_eq!(said(&job), even, "{iteration}");
        }
        (64..96).for_each(|iteration| job.steps.answered(answer(iteration, None), 0));
        assert!(said(&job).starts_with("Not faster than even shares"), "{}", said(&job));
    }

    /// A text that changed each second would be sent each second.
    #[test]
    fn times_below_a_minute_are_not_told() {
        let mut job = seen(64, 1.6);
        (job.facts.live, job.facts.past.left_unix_ms) = (1, Some(NOW.unix_ms));
        let at = |job: &Seen, ms: i64| {
            let now = Now { unix_ms: NOW.unix_ms + ms, ..NOW };
            verdict(job, &job.status(now), None, now)
        };
        assert!(at(&job, 0).starts_with("Paused for less than a minute: "), "{}", at(&job, 0));
        assert!((-1_000..60_000).step_by(997).all(|ms| at(&job, ms) == at(&job, 0)));
        assert!(at(&job, 60_000).starts_with("Paused for 1 min: "), "{}", at(&job, 60_000));
        job.facts.min_workers = 1_024;
        assert!(at(&job, 0).contains("1 worker live, fewer than min_workers 1,024"), "{}", at(&job, 0));
    }

    #[test]
    fn every_other_state_comes_first() {
        let mut job = seen(0, 1.0);
        job.facts.past.reported = None;
        assert_eq!(said(&job), "Starting: 4 workers live; no iteration has been reported.");
        let mut job = seen(64, 1.6);
        slowed(&mut job, "node-b/0", 0.45);
        job.facts.active_ms = 700_000;
        job.facts.past.reported = Some((64, 700_000));
        assert_eq!(
            said(&job),
            "Stalled for 5 min: 4 workers live, but none has reported since. Read the logs of the workers."
        );
        (job.facts.live, job.facts.past.left_unix_ms) = (1, Some(940_000));
        assert_eq!(
            said(&job),
            "Paused for 1 min: 1 worker live, fewer than min_workers 2. It continues when enough workers have joined."
        );
        job.facts.live = 0;
        assert_eq!(
            said(&job),
            "Finished: 1.60x as fast as even shares (1.58 to 1.62), 38.4 s saved. Forecast off by 3 %."
        );
        job.facts.past.expired = Some((worker("node-a/1"), 950_000));
        job.facts.expired = Some((4, worker("node-b/0")));
        assert_eq!(
            said(&job),
            "Failed: no worker is live; 4 leases expired, first node-b/0's. Read the log of that worker. \
             1.60x as fast as even shares (1.58 to 1.62), 38.4 s saved. Forecast off by 3 %."
        );
        job.facts.unreadable = Some("the option \"speed\" is unknown".into());
        assert_eq!(said(&job), "Unreadable: the option \"speed\" is unknown.");
        let mut short = seen(5, 1.6);
        short.facts.live = 0;
        assert_eq!(
            said(&short),
            "Finished: 5 of 8 iterations compared with even shares, too few for a gain. Forecast off by 3 %."
        );
        let mut equal = seen(64, 1.0);
        equal.facts.live = 0;
        assert_eq!(
            said(&equal),
            "Finished: not faster than even shares (0.98 to 1.02). Forecast off by 3 %."
        );
    }

    proptest! {
        /// A verdict is whole sentences in one line, promises a gain only above even shares, and blames no worker of a job that
        /// has ended.
        #[test]
        fn a_verdict_is_sentences_in_one_line(
            live in 0_u64..5, iterations in 0_u64..40, even_s in 0.2_f64..4.0, error in 0.0_f64..3.0,
            silent_ms in 0_i64..900_000, ratio in 0.0_f64..1.0, expired in proptest::bool::ANY, is_slow in proptest::bool::ANY,
        ) {
            let mut job = seen(iterations, even_s);
            (job.facts.live, job.facts.active_ms) = (live, NOW.steady_ms - silent_ms);
            job.facts.past.reported = (iterations > 0).then_some((iterations, NOW.unix_ms - silent_ms));
            job.facts.past.expired = expired.then(|| (worker("node-b/0"), NOW.unix_ms));
            if let Some(means) = &mut job.means {
                means.error_ratio = Some(error);
            }
            if is_slow {
                slowed(&mut job, "node-b/0", ratio);
            }
            let said = said(&job);
            prop_assert!(said.ends_with('.') && !said.contains('\n') && !said.contains("  ") && said.len() < 400, "{said}");
            prop_assert!(said.starts_with(|first: char| first.is_uppercase() || first.is_ascii_digit()), "{said}");
            prop_assert!(!said.contains("x as fast") || even_s >= PAYS, "{said}");
            prop_assert!(live > 0 || !said.contains("has been at"), "{said}");
        }
    }
}
