use std::collections::BTreeSet;
use std::time::Duration;

use evenstep_protocol::{JobState, LogEntry, LogKind, LogView, NodeId, NodeSummary, WorkerId};
use proptest::prelude::*;
use ratatui::style::Color;

use super::super::state::tests::{job_id, live, step, straggler, workers};
use super::super::state::{FeedEvent, Key, StreamEvent};
use super::*;

const NOW: Duration = Duration::from_secs(1);

fn drawn(state: &State, now: Duration, width: u16, height: u16, theme: Theme) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(state, now, theme, buffer.area, &mut buffer);
    buffer
}

fn text(state: &State, now: Duration, width: u16, height: u16) -> String {
    let buffer = drawn(state, now, width, height, Theme::new(true));
    let rows = buffer.content().chunks(usize::from(width.max(1)));
    rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>() + "\n").collect()
}

/// Two jobs and a node. If `open` is true, a job of four workers is open.
fn state(open: bool) -> State {
    let mut state = State::new("http://a:1".into(), open.then(|| job_id("night-run")));
    let mut all = live(&["night-run", "other"]);
    all.nodes.push(NodeSummary { node: NodeId::new("node-a").unwrap(), at_unix_ms: 9_000 });
    state.apply(FeedEvent::All(StreamEvent::Jobs(all), "http://a:1".into()), NOW);
    if open {
        let mut apply = |heard| state.apply(FeedEvent::Job(job_id("night-run"), heard), NOW);
        (0..40).for_each(|iteration| apply(StreamEvent::Step(Box::new(step(iteration, 4)))));
        let entry = LogEntry {
            at_unix_ms: 8_000,
            kind: LogKind::Reallocated,
            iteration: Some(30),
            worker: None,
            text: "node-a/0 gets 100 instead of 128 samples".into(),
        };
        apply(StreamEvent::Logs(LogView { job_id: job_id("night-run"), entries: vec![entry] }));
    }
    state
}

#[test]
fn jobs_and_nodes_are_listed() {
    let text = text(&state(false), NOW, 170, 20);
    for said in [
        "2 jobs, 1 node",
        "night-run",
        "1,233",
        "212 ms",
        "2,413",
        "3.1 %",
        "1.41x",
        "2,413 samples/s",
        "running",
        "1.41x as fast as even shares (1.38 to 1.44). Forecast off by 2 %.",
        "node-a",
        "1 s ago",
        "http://a:1  live",
        "quit",
    ] {
        assert!(text.contains(said), "{said:?} in\n{text}");
    }
}

#[test]
fn a_job_shows_its_workers_their_finish_and_why() {
    let text = text(&state(true), NOW, 140, 30);
    for said in [
        "job night-run",
        "iteration 39",
        "210 ms",
        "even shares 340 ms",
        "on demand 16",
        "running workers 4  gain 1.41x  lost waiting 3.1 %  forecast error 2.0 %  saved 3.2 h",
        "a change would gain 0.4 %, less than 2 %",
        "node-a/3",
        "-5.0 %",
        "+0.0 %",
        "475.0",
        "19.5 %",
        "┃",
        " log ",
        "2 s  node-a/0 gets 100 instead of 128 samples",
        "predicted (dots)",
    ] {
        assert!(text.contains(said), "{said:?} in\n{text}");
    }
    // The bars of all workers end at the same column.
    let ends: Vec<_> = text
        .lines()
        .filter(|line| line.contains('┃') && line.contains("node-a/"))
        .map(|line| line.chars().collect::<Vec<_>>().iter().rposition(|c| "█░".contains(*c)).unwrap())
        .collect();
    assert!(ends.len() == 4 && ends.iter().all(|end| *end == ends[0]), "{ends:?} in\n{text}");
}

#[test]
fn tail_shares_are_encoded_and_no_number_is_truncated() {
    let mut state = state(true);
    let mut with_tail = step(40, 2);
    with_tail.workers[1].samples = Some(136);
    state.apply(FeedEvent::Job(job_id("night-run"), StreamEvent::Step(Box::new(with_tail))), NOW);
    let whole = text(&state, NOW, 140, 30);
    assert!(whole.contains("120+16") && whole.contains("26.6 %"), "{whole}");
    for width in 30..140 {
        let text = text(&state, NOW, width, 30);
        let summary_line = text.lines().find(|line| line.starts_with(" iteration")).unwrap().trim();
        let all = " iteration 40  step 210 ms  expected 205 ms  samples/s 2,413  even shares 340 ms  batch 512  on demand 16 ";
        assert!(
            all.contains(&format!(" {summary_line} ")) || summary_line.contains(all.trim()),
            "{width}: {summary_line:?}"
        );
    }
}

/// A terminal of the usual size shows the state, the whole decision, the slow worker, and workers by slowness.
#[test]
fn eighty_by_twenty_four_has_all_of_it() {
    let mut state = state(true);
    let mut apply = |heard| state.apply(FeedEvent::Job(job_id("night-run"), heard), NOW);
    let decision = "node-a/3 slowed by 38 % and gets 96 instead of 160 samples; node-a/0, node-a/1 and node-a/2 take \
        the rest, so that the step takes 205 ms instead of 241 ms";
    let mut slowed = step(40, 4);
    slowed.reason = decision.into();
    slowed.workers[3].actual_samples_per_s = Some(400.0);
    apply(StreamEvent::Step(Box::new(slowed)));
    let mut workers = workers(4);
    workers.workers[3].straggler = Some(straggler());
    apply(StreamEvent::Workers(workers));
    let text = text(&state, NOW, 80, 24);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        "running workers 4 gain 1.41x lost waiting 3.1 % forecast error 2.0 %",
        decision,
        "1.41x as fast as even shares (1.38 to 1.44). Forecast off by 2 %.",
        " log ",
    ] {
        assert!(words.contains(said.trim()), "{said:?} in\n{text}");
    }
    let rows: Vec<&str> =
        text.lines().filter(|line| line.contains("node-a/") && line.contains('┃')).collect();
    assert!(rows.len() == 4 && rows[0].contains("!node-a/3") && rows[1].contains("node-a/0"), "{text}");
    let long = "word ".repeat(200);
    let mut endless = step(41, 4);
    endless.reason = long;
    state.apply(FeedEvent::Job(job_id("night-run"), StreamEvent::Step(Box::new(endless))), NOW);
    let cut = self::text(&state, NOW, 80, 24);
    assert!(cut.contains('…') && cut.contains("node-a/3"), "{cut}");
}

/// The usual sizes of terminals have gain, error and whole numbers, also of fast jobs with long names.
#[test]
fn usual_terminals_have_gain_error_and_whole_numbers() {
    let long = "resnet-2026-11-28-large-batch-of-the-night-seed-17";
    let mut all = live(&["fast", "tokens", "done", long]);
    all.jobs[0].samples_per_s = Some(70_432.0);
    (all.jobs[1].samples_per_s, all.jobs[1].unit) = (Some(1_236_549.0), "tokens".into());
    (all.jobs[2].state, all.jobs[2].samples_per_s) = (Some(JobState::Finished), Some(123_456.0));
    // Steps of 109 s: a report every two minutes is usual.
    (all.jobs[3].step_time_s, all.jobs[3].at_unix_ms) = (Some(109.0), Some(all.now_unix_ms - 100_000));
    all.jobs[3].slow_workers = 2;
    all.jobs[3].verdict = Some("node-b/0 has been at 45 % of its usual speed for 12 min.".into());
    let mut list = State::new("http://a:1".into(), None);
    list.apply(FeedEvent::All(StreamEvent::Jobs(all.clone()), "http://a:1".into()), NOW);
    for (width, height) in [(80, 24), (120, 40), (200, 50)] {
        let text = text(&list, NOW, width, height);
        for said in [
            "gain",
            "1.41x",
            "error",
            "2.0 %",
            "109 s",
            "seed-17",
            "node-b/0 has been at 45 % of its usual speed",
        ] {
            assert!(text.contains(said), "{said:?} in\n{text}");
        }
        assert!(!text.contains('!'), "a healthy job is marked in\n{text}");
        assert!(!text.contains("123,456"), "a finished job has a throughput in\n{text}");
        if width >= 120 {
            assert!(text.contains("70,432 samples/s") && text.contains("1,236,549 tokens/s"), "{text}");
        }
        let first = text.lines().nth(2).unwrap();
        assert!(
            first.contains("resnet-2026") && (width > 80 || first.contains('…')),
            "trouble first in\n{text}"
        );
        let mut open = State::new("http://a:1".into(), Some(job_id("tokens")));
        open.apply(FeedEvent::All(StreamEvent::Jobs(all.clone()), "http://a:1".into()), NOW);
        let mut latest = step(1_236_549, 4);
        for worker in &mut latest.workers {
            worker.actual_samples_per_s = worker.actual_samples_per_s.map(|speed| speed * 1e3);
            worker.worker = WorkerId::new(format!("gpu-node-with-a-long-name-0123/{}", worker.rank)).unwrap();
        }
        open.apply(FeedEvent::Job(job_id("tokens"), StreamEvent::Step(Box::new(latest))), NOW);
        let text = self::text(&open, NOW, width, height);
        for said in [
            "gain 1.41x",
            "forecast error 2.0 %",
            "1.41x as fast as even shares",
            "1,236,549",
            "475,000",
            "0123/3",
        ] {
            assert!(text.contains(said), "{said:?} in\n{text}");
        }
    }
}

/// On a small screen, all of the selected job's verdict is shown or its end is an ellipsis, and the number of other jobs.
#[test]
fn a_list_that_does_not_fit_is_not_cut_silently() {
    let names: Vec<String> = (0..40).map(|number| format!("job-{number}")).collect();
    let mut all = live(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let verdict =
        "node-b/0 has been at 45 % of its usual speed for 12 min: it waits for a core 40 % of the time. ";
    let verdict = verdict.repeat(3);
    all.jobs.iter_mut().for_each(|job| job.verdict = Some(verdict.clone()));
    all.jobs[0].state = Some(JobState::Paused);
    all.jobs[0].samples_per_s = Some(123_456.0);
    let mut list = State::new("http://a:1".into(), None);
    list.apply(FeedEvent::All(StreamEvent::Jobs(all), "http://a:1".into()), NOW);
    for height in 8..44 {
        let text = text(&list, NOW, 80, height);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.contains(verdict.trim()) || height < 13 && words.contains("… j k"),
            "{height} in\n{text}"
        );
        let jobs = text.lines().filter(|line| line.contains("job-")).count();
        let more = format!("… {} more", 40 - jobs);
        assert!(jobs < 40 && text.contains(&more), "{height}: {more} in\n{text}");
    }
    let whole = text(&list, NOW, 120, 60);
    assert!(whole.contains("job-39") && !whole.contains(" more"), "{whole}");
    assert!(whole.contains("2,413 samples/s") && !whole.contains("123,456"), "{whole}");
}

#[test]
fn missing_data_is_reported() {
    let nothing = State::new("http://a:1".into(), None);
    assert!(text(&nothing, NOW, 80, 20).contains("connecting"));
    let mut none = State::new("http://a:1".into(), None);
    none.apply(FeedEvent::All(StreamEvent::Jobs(live(&[])), "http://a:1".into()), NOW);
    assert!(text(&none, NOW, 100, 20).contains("There are no jobs yet"));
    let mut gone = state(true);
    gone.apply(FeedEvent::Job(job_id("night-run"), StreamEvent::Gone), NOW);
    assert!(text(&gone, NOW, 80, 20).contains("Unknown job night-run"));
    let text_of_none = text(&none, NOW, 100, 20);
    assert!(!text_of_none.contains("last sample"), "{text_of_none}");
    let mut waiting = live(&[]);
    waiting.nodes.push(NodeSummary { node: NodeId::new("node-a").unwrap(), at_unix_ms: 9_000 });
    none.apply(FeedEvent::All(StreamEvent::Jobs(waiting), "http://a:1".into()), NOW);
    assert!(text(&none, NOW, 100, 20).contains("node-a"), "nodes are shown without jobs");
    let mut idle = State::new("http://a:1".into(), Some(job_id("idle")));
    idle.apply(FeedEvent::Job(job_id("idle"), StreamEvent::Opened), NOW);
    assert!(text(&idle, NOW, 80, 20).contains("No worker has reported an iteration"));
}

#[test]
fn a_lost_connection_is_shown_and_known_data_stays() {
    let mut state = state(true);
    let now = Duration::from_secs(60);
    assert!(text(&state, now, 140, 30).contains("! silent for 59 s"));
    state.apply(
        FeedEvent::All(StreamEvent::Lost("http://a:1: connection refused".into()), "http://a:1".into()),
        NOW,
    );
    let text = text(&state, now, 140, 30);
    for said in ["! lost 59 s ago", "connection refused", "node-a/3"] {
        assert!(text.contains(said), "{said:?} in\n{text}");
    }
}

#[test]
fn help_is_over_the_rest() {
    let mut state = state(true);
    state.key(Key::Help);
    let text = text(&state, NOW, 80, 24);
    for said in ["j k, arrows", "all workers finish at the same time.", "#/glossary"] {
        assert!(text.contains(said), "{said:?} in\n{text}");
    }
}

#[test]
fn charts_render_at_any_size() {
    let mut many = state(true);
    many.apply(FeedEvent::Job(job_id("night-run"), StreamEvent::Step(Box::new(step(99, 300)))), NOW);
    many.key(Key::Last);
    let mut helped = state(false);
    helped.key(Key::Help);
    for state in [&state(false), &state(true), &many, &helped] {
        for width in [1, 2, 29, 30, 31, 45, 60, 80, 99, 100, 120, 250, 400] {
            for height in [1, 2, 4, 5, 6, 7, 9, 12, 16, 24, 50, 120] {
                drawn(state, NOW, width, height, Theme::new(true));
            }
        }
    }
    assert!(text(&many, NOW, 80, 24).contains("node-a/299"), "the chosen worker is scrolled to");
    assert!(text(&many, NOW, 10, 2).contains("10x2 is to"));
}

#[test]
fn without_colours_there_are_none() {
    let mut state = state(true);
    state.apply(FeedEvent::All(StreamEvent::Lost("refused".into()), "http://a:1".into()), NOW);
    let plain = drawn(&state, NOW, 140, 30, Theme::new(false));
    assert!(plain.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    let coloured = drawn(&state, NOW, 140, 30, Theme::new(true));
    assert!(coloured.content().iter().any(|cell| cell.fg == Color::Red));
}

/// Words with a digit, without the short forms on the axes of the chart, and without shortened names of workers.
fn numbers(text: &str) -> BTreeSet<String> {
    let is_number = |word: &&str| {
        word.contains(|letter: char| letter.is_ascii_digit())
            && !word.ends_with(['k', 'M', 'G', 'T'])
            && !(word.contains('e') && word.parse::<f64>().is_ok())
    };
    let is_name = |word: &&str| word.contains('…') && word.contains('/');
    let words = text.split([' ', '\n', '│']).filter(|word| !is_name(word));
    words.filter(is_number).map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the numbers, a frame has only numbers that the widest frame has, which are whole.
    #[test]
    fn numbers_are_whole_at_every_width(
        speed in prop_oneof![0.0..10_f64, 0.0..1e6, 0.0..1e12],
        time_s in prop_oneof![0.0..1_f64, 0.0..1e7],
        count in prop_oneof![0_u64..1000, 0..u64::MAX],
        error in prop_oneof![-0.2..0.2_f64, -1e6..1e6],
        long in 1_usize..60,
        width in WIDTH_MIN..200,
    ) {
        let name = "a".repeat(long);
        let mut all = live(&[&name]);
        let job = &mut all.jobs[0];
        (job.samples_per_s, job.iteration, job.live_workers) = (Some(speed), Some(count), count % 1_000_000);
        (job.step_time_s, job.slow_workers, job.error_ratio) = (Some(time_s), count % 10_000, Some(error));
        (job.waiting_share, job.reason) = (Some(error), None);
        let mut latest = step(count / 2, 2);
        (latest.global_batch, latest.reason, latest.tail_samples) = (count, "held".into(), count / 3);
        for worker in &mut latest.workers {
            (worker.local_batch, worker.samples) = (count / 3, Some(count / 2));
            (worker.predicted_samples_per_s, worker.actual_samples_per_s) = (Some(speed), Some(speed * 2.0));
            (worker.compute_time_s, worker.barrier_wait_s) = (Some(time_s), Some(time_s / 2.0));
        }
        all.nodes.push(NodeSummary { node: NodeId::new(&name).unwrap(), at_unix_ms: 10_000 - (count >> 1) as i64 });
        for open in [None, Some(job_id(&name))] {
            let mut state = State::new("http://server".into(), open.clone());
            state.apply(FeedEvent::All(StreamEvent::Jobs(all.clone()), "http://server".into()), NOW);
            if open.is_some() {
                state.apply(FeedEvent::Job(job_id(&name), StreamEvent::Step(Box::new(latest.clone()))), NOW);
            }
            let whole = numbers(&text(&state, NOW, 300, 14));
            if open.is_none() {
                prop_assert!(whole.contains(&number_format::speed(Some(speed))), "{whole:?}");
            }
            let narrow = text(&state, NOW, width, 14);
            let cut: Vec<_> = numbers(&narrow).difference(&whole).cloned().collect();
            prop_assert!(cut.is_empty(), "{cut:?} at {width} in\n{narrow}");
        }
    }
}
