//! A real browser: headless Chromium, driven over WebDriver (<https://www.w3.org/TR/webdriver2/>) by its
//! chromedriver.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use ureq::Agent;
use ureq::http::Method;

use crate::binaries::skip;
use crate::process::Process;
use crate::wait::{PATIENCE, until, until_or};

/// Possible names of the Chromium program.
const CHROMIUM: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Headless, with a new profile and without background network traffic.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];
/// Key of an element's id in WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// Longer than any response of a healthy browser, on the slowest machine that builds this.
const TIMEOUT: Duration = PATIENCE;
/// Starts of the driver until one has a free port.
const DRIVER_TRIES: usize = 10;

/// Window size of a desktop, in pixels.
pub const DESKTOP: (u32, u32) = (1400, 1000);
/// Window size of a phone, in pixels.
pub const PHONE: (u32, u32) = (390, 844);

/// A browser with a separate profile and one tab.
#[derive(Debug)]
pub struct Browser {
    agent: Agent,
    session: String,
    // Declared before the profile folder, so that the driver ends before the folder is removed.
    _driver: Process,
    _profile: TempDir,
}

/// Returns the first of these programs on the PATH.
fn on_path(names: &[&str]) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH")?).collect();
    names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
}

/// Starts chromedriver; returns it and its port. It chooses a port for IPv6, and ends if another program has that port for IPv4.
fn start_driver(program: &Path) -> (Process, String) {
    for _ in 0..DRIVER_TRIES {
        let driver = Process::start(Command::new(program).arg("--port=0"));
        let port = driver.line("its address", |line| match line.split_once("successfully on port ") {
            Some((_, port)) => Some(Some(port.trim_end_matches('.').to_owned())),
            None => line.contains("port not available").then_some(None),
        });
        if let Some(port) = port {
            return (driver, port);
        }
    }
    panic!("chromedriver found no free port in {DRIVER_TRIES} tries");
}

impl Browser {
    /// Starts a browser. Returns `None` and reports the test as skipped if Chromium or its driver is not
    /// installed.
    pub fn start(test: &str) -> Option<Self> {
        let (Some(chromium), Some(driver)) = (on_path(&CHROMIUM), on_path(&["chromedriver"])) else {
            skip(test, "chromium and chromedriver are not on the PATH (Debian: chromium, chromium-driver)");
            return None;
        };
        let profile = tempfile::tempdir().expect("a folder");
        let (driver, port) = start_driver(&driver);
        let agent: Agent =
            Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).build().into();
        let mut arguments: Vec<String> = FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
        arguments.push(format!("--user-data-dir={}", profile.path().display()));
        let options = json!({ "args": arguments, "binary": chromium });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" }, "goog:chromeOptions": options,
        } } });
        let server = format!("http://127.0.0.1:{port}");
        let begun =
            send(&agent, &Method::POST, &format!("{server}/session"), Some(&wanted)).expect("a session");
        let session = format!("{server}/session/{}", begun["sessionId"].as_str().expect("a session's id"));
        let browser = Self { agent, session, _driver: driver, _profile: profile };
        browser.resize(DESKTOP);
        Some(browser)
    }

    /// Opens an address.
    pub fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// Runs a script in the page (the body of a function), and returns its result.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs a script that ends by calling its last argument, and returns the value of that call.
    pub fn run_until_called(&self, script: &str) -> Value {
        self.post("/timeouts", &json!({ "script": (TIMEOUT - Duration::from_secs(5)).as_millis() }));
        self.post("/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true in the page.
    ///
    /// # Panics
    /// The expression is never true. The message contains the text of the page.
    pub fn until(&self, what: &str, expression: &str) {
        // A page has no document for a moment while another one is loaded.
        let script = json!({ "script": format!("return Boolean({expression})"), "args": [] });
        let look = || self.try_post("/execute/sync", &script).is_ok_and(|value| value == true);
        let text = json!({ "script": "return document.body?.innerText", "args": [] });
        let state = || format!("text of the page: {:?}", self.try_post("/execute/sync", &text));
        until_or(what, state, || look().then_some(()));
    }

    /// Returns the text of the first element that a CSS selector finds, or an empty text.
    pub fn text(&self, css: &str) -> String {
        let found = self.run(&format!("return document.querySelector({})?.innerText ?? ''", json!(css)));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the text of an element contains these words.
    pub fn says(&self, css: &str, words: &str) {
        let contains =
            format!("document.querySelector({})?.innerText.includes({})", json!(css), json!(words));
        self.until(&format!("{css} shows {words:?}"), &contains);
    }

    /// Waits for an element and clicks on it like a mouse: in its middle, which must not be covered.
    pub fn click(&self, css: &str) {
        self.until(&format!("{css} exists"), &format!("document.querySelector({})", json!(css)));
        self.with_element(css, |element| self.try_post(&format!("/element/{element}/click"), &json!({})));
    }

    /// Types a text, or the path of a file, into an element.
    pub fn fill(&self, css: &str, text: &str) {
        let text = json!({ "text": text });
        self.with_element(css, |element| self.try_post(&format!("/element/{element}/value"), &text));
    }

    /// Presses keys one after the other, in the focused element. Named keys are private characters of
    /// WebDriver.
    pub fn press(&self, keys: &[char]) {
        let presses: Vec<Value> = keys
            .iter()
            .flat_map(|key| {
                ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
            })
            .collect();
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": presses }] });
        self.post("/actions", &actions);
    }

    /// Runs `look` inside a frame, which may be of another origin.
    pub fn in_frame(&self, css: &str, look: impl FnOnce(&Self)) {
        let element = json!({ ELEMENT: self.element(css) });
        self.post("/frame", &json!({ "id": element }));
        look(self);
        self.post("/frame", &json!({ "id": null }));
    }

    /// Sets the size of the page in pixels. It may be a phone's size, although windows have a larger minimum
    /// size.
    pub fn resize(&self, (width, height): (u32, u32)) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Sets the system's preferences as the page receives them, such as `("prefers-color-scheme", "dark")`.
    pub fn prefer(&self, features: &[(&str, &str)]) {
        let features: Vec<Value> =
            features.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Sends a command of the DevTools protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// Waits until all charts of the page are drawn. If `EVENSTEP_TESTS_PICTURES` is set, also saves a picture of the whole page as
    /// `target/pictures/NAME.png`, for people to look at.
    pub fn picture(&self, name: &str) {
        let number = |script: &str| self.run(script).as_f64().unwrap_or_default() as u32;
        let window = (number("return innerWidth"), number("return innerHeight"));
        // Charts in closed parts of the page are not drawn.
        let plots = "[...document.querySelectorAll('.figure .plot:not([hidden])')].filter((plot) => plot.checkVisibility())";
        let drawn = format!("return {plots}.every((plot) => plot.firstElementChild)");
        until(&format!("every chart of {name} is drawn"), || {
            // The whole page must be in view, because the rest is not drawn. It grows while responses arrive.
            self.resize((window.0, number("return document.documentElement.scrollHeight").max(window.1)));
            (self.run(&drawn) == true).then_some(())
        });
        if env::var_os("EVENSTEP_TESTS_PICTURES").is_none() {
            self.resize(window);
            return;
        }
        let picture = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        self.resize(window);
        let bytes = BASE64_STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64");
        let folder = pictures();
        fs::create_dir_all(&folder).expect("a folder for pictures");
        fs::write(folder.join(format!("{name}.png")), bytes).expect("a picture that can be written");
    }

    /// Returns warnings and errors of the console since the last call, as `LEVEL message`.
    pub fn complaints(&self) -> Vec<String> {
        let lines = self.post("/se/log", &json!({ "type": "browser" }));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let lines = lines.as_array().cloned().unwrap_or_default();
        let bad = lines.iter().filter(|line| line["level"] == "SEVERE" || line["level"] == "WARNING");
        bad.map(|line| format!("{} {}", text(&line["level"]), text(&line["message"]))).collect()
    }

    /// Uses the element that a CSS selector finds. The page may replace the element meanwhile: then uses the new one.
    fn with_element(&self, css: &str, act: impl Fn(&str) -> Result<Value, String>) {
        until(&format!("{css} can be used"), || match act(&self.element(css)) {
            Ok(_) => Some(()),
            Err(why) => {
                assert!(why.contains("stale element reference"), "{css}: {why}");
                None
            }
        });
    }

    fn element(&self, css: &str) -> String {
        let found = self.post("/element", &json!({ "using": "css selector", "value": css }));
        found[ELEMENT].as_str().unwrap_or_else(|| panic!("no element {css}")).to_owned()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.try_post(path, body).unwrap_or_else(|why| panic!("{path} {body}: {why}"))
    }

    fn try_post(&self, path: &str, body: &Value) -> Result<Value, String> {
        send(&self.agent, &Method::POST, &format!("{}{path}", self.session), Some(body))
    }
}

impl Drop for Browser {
    /// Chromium is a child of the driver and ends with the session.
    fn drop(&mut self) {
        // Fails only if the driver has crashed.
        let _ = send(&self.agent, &Method::DELETE, &self.session, None);
    }
}

fn send(agent: &Agent, method: &Method, url: &str, body: Option<&Value>) -> Result<Value, String> {
    let answer = match (method, body) {
        (&Method::DELETE, _) => agent.delete(url).call(),
        (_, body) => agent.post(url).send_json(body),
    };
    let mut answer = answer.map_err(|error| error.to_string())?;
    let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string();
    let text = text.map_err(|error| error.to_string())?;
    let mut said: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    if answer.status().is_success() { Ok(said["value"].take()) } else { Err(said["value"].to_string()) }
}

/// Returns the folder for pictures, for people to look at.
pub fn pictures() -> PathBuf {
    // target/debug/deps/this-test
    let test_file = env::current_exe().expect("the path of this test");
    test_file.ancestors().nth(3).map(|target| target.join("pictures")).expect("cargo's folders")
}

/// Returns the axe-core script that `scripts/axe` downloads. Returns `None` and reports the test as skipped
/// if it is missing.
pub fn axe(test: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.axe/axe.min.js");
    let script = fs::read_to_string(&path).ok();
    if script.is_none() {
        skip(test, "axe-core is missing; scripts/axe downloads it");
    }
    script
}
