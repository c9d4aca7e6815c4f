//! The terminal: reads keys and draws frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};

use super::Args;
use super::draw::{Theme, draw};
use super::feed::Feed;
use super::state::{Action, FeedEvent, Key, State};

/// Longest wait for a key before events are read.
const KEY_WAIT: Duration = Duration::from_millis(50);
/// Longest time without drawing, so that ages advance even without events.
const DRAW_EVERY: Duration = Duration::from_secs(1);

/// Runs until the user quits.
///
/// # Errors
/// An error if the terminal cannot be used.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let (mut feed, news) = Feed::start(args.server.clone(), args.tls.load()?)?;
    let mut state = State::new(args.server.urls()[0].clone(), args.job.clone());
    if let Some(job) = &args.job {
        feed.follow(job.clone()).map_err(anyhow::Error::msg)?;
    }
    let terminated = termination_flag()?;
    let colours = std::env::var_os("NO_COLOR").is_none_or(|said| said.is_empty());
    let mut terminal = ratatui::try_init()?;
    let ran = watch(&mut terminal, &mut state, &mut feed, &news, Theme::new(colours), &terminated);
    // Restored after every outcome, also an error.
    ratatui::restore();
    ran
}

fn watch(
    terminal: &mut DefaultTerminal,
    state: &mut State,
    feed: &mut Feed,
    news: &Receiver<FeedEvent>,
    theme: Theme,
    terminated: &AtomicBool,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut drawn: Option<Instant> = None;
    while !terminated.load(Ordering::Relaxed) {
        let mut changed = drawn.is_none_or(|drawn| drawn.elapsed() >= DRAW_EVERY);
        while let Ok(news) = news.try_recv() {
            state.apply(news, started.elapsed());
            changed = true;
        }
        if changed {
            drawn = Some(Instant::now());
            terminal.draw(|frame| draw(state, started.elapsed(), theme, frame.area(), frame.buffer_mut()))?;
        }
        if !event::poll(KEY_WAIT)? {
            continue;
        }
        drawn = None;
        let Event::Key(pressed) = event::read()? else { continue };
        match key(pressed).map(|key| state.key(key)) {
            Some(Action::Quit) => return Ok(()),
            Some(Action::Follow(job)) => state.notice = feed.follow(job).err(),
            Some(Action::Leave) => feed.leave(),
            Some(Action::Nothing) | None => {}
        }
    }
    Ok(())
}

fn key(pressed: KeyEvent) -> Option<Key> {
    if pressed.kind == KeyEventKind::Release {
        return None;
    }
    if pressed.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(pressed.code, KeyCode::Char('c')).then_some(Key::Quit);
    }
    Some(match pressed.code {
        KeyCode::Up | KeyCode::Char('k') => Key::Up,
        KeyCode::Down | KeyCode::Char('j') => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home | KeyCode::Char('g') => Key::First,
        KeyCode::End | KeyCode::Char('G') => Key::Last,
        KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => Key::Open,
        KeyCode::Esc | KeyCode::Left | KeyCode::Char('h') => Key::Back,
        KeyCode::Char('?') => Key::Help,
        KeyCode::Char('q') => Key::Quit,
        _ => return None,
    })
}

/// Returns a flag that becomes true on SIGTERM, so that the terminal is restored before the program ends. On
/// SIGHUP the terminal is closed and a read of keys would never return: the process exits at once.
fn termination_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let terminated = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut hang_up) = {
        let _inside = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    let tell = terminated.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = hang_up.recv() => std::process::exit(0),
            }
        });
        tell.store(true, Ordering::Relaxed);
    })?;
    Ok(terminated)
}
