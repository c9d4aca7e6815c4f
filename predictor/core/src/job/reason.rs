//! Decisions and stragglers as text.

use evenstep_protocol::{DecisionKind, StragglerReason, StragglerView, WorkerId};

use crate::plan::Reason;
use crate::straggler::{Cause, Straggler};

/// Returns the kind of a decision.
pub fn kind(reason: &Reason) -> DecisionKind {
    match reason {
        Reason::Unmeasured { .. } => DecisionKind::ColdStart,
        Reason::Probing { .. } | Reason::MeasuresIdle { .. } => DecisionKind::Profiling,
        Reason::FirstMeasured | Reason::SpeedChanged { .. } | Reason::Even | Reason::Resumed => {
            DecisionKind::Rebalanced
        }
        Reason::Unchanged | Reason::Held { .. } | Reason::HoldsEven { .. } => DecisionKind::Held,
    }
}

/// Returns the reason as text. `live` are the workers in rank order.
pub fn text(reason: &Reason, live: &[WorkerId], min_gain: f64) -> String {
    match *reason {
        Reason::Unmeasured { workers } if workers < live.len() => {
            format!("{workers} of {} workers are unmeasured and get at most an even share", live.len())
        }
        Reason::Unmeasured { workers } => {
            format!("{workers} of {} workers are unmeasured: even shares", live.len())
        }
        Reason::Probing { doubt } => format!(
            "shares vary to learn the batch curves: the time with even shares is uncertain by {:.0} %",
            100.0 * doubt
        ),
        Reason::MeasuresIdle { workers } => {
            format!("{workers} of {} workers had no samples for long and are measured again", live.len())
        }
        Reason::FirstMeasured => "first allocation by speed".into(),
        Reason::SpeedChanged { rank, ratio } => {
            let (direction, percent) = if ratio < 1.0 {
                ("slowed", (1.0 - ratio) * 100.0)
            } else {
                ("sped up", (ratio - 1.0) * 100.0)
            };
            live.get(rank)
                .map_or_else(String::new, |worker| format!("{worker} {direction} by {percent:.0} %"))
        }
        // Rounded to 0.0 %.
        Reason::HoldsEven { loss } if loss < 5e-4 => "even shares, because planned ones were slower".into(),
        Reason::HoldsEven { loss } => {
            format!("even shares, because planned ones were {:.1} % slower", 100.0 * loss)
        }
        Reason::Resumed => "planned shares again: they would have been faster".into(),
        Reason::Even => "even shares are as fast".into(),
        Reason::Unchanged => "the current shares are the best".into(),
        Reason::Held { gain, lost } => {
            let so_far = if lost >= min_gain {
                format!("; together {:.1} % of a step so far", lost * 100.0)
            } else {
                String::new()
            };
            format!(
                "a change would save {:.1} % of the step; shares change from {} % on{so_far}",
                gain * 100.0,
                (min_gain * 1000.0).round() / 10.0
            )
        }
    }
}

/// Converts a straggler to its wire type, with its cause as text.
pub fn straggler(straggler: &Straggler) -> StragglerView {
    let share =
        |what: &str, waiting: f64| format!("it waits for {what} {:.0} % of the time", waiting * 100.0);
    let (reason, detail) = match straggler.cause {
        Cause::Throttling { clock_ratio, celsius } => {
            let heat =
                celsius.map_or_else(String::new, |celsius| format!(", at {celsius:.0} degrees Celsius"));
            let detail = format!("its GPU runs at {:.0} % of its usual clock{heat}", clock_ratio * 100.0);
            (StragglerReason::ThermalThrottling, detail)
        }
        Cause::CpuContention { waiting, throttled } => {
            let limit = throttled.map_or_else(String::new, |throttled| {
                format!("; its CPU limit stops it in {:.0} % of the periods", throttled * 100.0)
            });
            (StragglerReason::CpuContention, share("a core", waiting) + &limit)
        }
        Cause::LoaderWait { waiting } => (StragglerReason::LoaderWait, share("its data", waiting)),
        Cause::MemoryPressure { waiting } => (StragglerReason::MemoryPressure, share("memory", waiting)),
        Cause::Unknown if straggler.is_measured => {
            (StragglerReason::Unknown, "the readings of its node do not explain it".into())
        }
        Cause::Unknown => (StragglerReason::Unknown, "no agent measures its node".into()),
    };
    StragglerView { reason, speed_ratio: straggler.speed_ratio, since_iteration: straggler.since, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_that_do_not_exist_explain_nothing() {
        let detail = |is_measured| {
            let slow = Straggler { cause: Cause::Unknown, speed_ratio: 0.5, since: 3, is_measured };
            straggler(&slow).detail
        };
        assert_eq!(detail(true), "the readings of its node do not explain it");
        assert_eq!(detail(false), "no agent measures its node");
    }
}
