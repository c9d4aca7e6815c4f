//! Style and scripts of a page, and the content security policy that allows only these.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

/// uPlot with its licence, as a separate script. The chart modules find it as the global `uPlot`.
pub(super) const UPLOT: &str = concat!(
    "/*\n",
    include_str!("../../charts/uplot/LICENSE"),
    "*/\n",
    include_str!("../../charts/uplot/uPlot.iife.min.js")
);

/// Style shared with the service's page, except for the layout.
pub(super) const STYLE: &str = concat!(
    include_str!("../../charts/uplot/uPlot.min.css"),
    include_str!("../../charts/style.css"),
    include_str!("report.css")
);

/// The modules, each after the modules that it imports.
const MODULES: [&str; 10] = [
    include_str!("../../charts/colours.js"),
    include_str!("../../charts/dom.js"),
    include_str!("../../charts/format.js"),
    include_str!("../../charts/frame.js"),
    include_str!("../../charts/figure.js"),
    include_str!("../../charts/line.js"),
    include_str!("text.js"),
    include_str!("readings.js"),
    include_str!("paint.js"),
    include_str!("report.js"),
];

/// All modules as one script. A page opened from a file cannot import modules, so the import lines are
/// removed. All names are distinct and resolve within the one script.
pub(super) static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    let lines = MODULES.iter().flat_map(|module| module.lines()).filter(|line| !line.starts_with("import "));
    let own = lines.map(|line| line.strip_prefix("export ").unwrap_or(line));
    own.flat_map(|line| [line, "\n"]).collect()
});

/// Content security policy that allows exactly the scripts and the style above. Injected markup would have no
/// effect.
pub(super) static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; script-src {} {}; style-src {}; base-uri 'none'; form-action 'none'",
        hash(UPLOT),
        hash(&SCRIPT),
        hash(STYLE)
    )
});

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Returns the name that a top-level line of a module declares.
    fn declared(line: &str) -> Option<&str> {
        let line = line.strip_prefix("export ").unwrap_or(line);
        let kinds = ["const ", "let ", "function ", "class "];
        let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    }

    #[test]
    fn modules_import_what_an_earlier_one_declares_and_no_name_is_declared_twice() {
        let mut known: HashSet<&str> = HashSet::new();
        for module in MODULES {
            for line in module.lines().filter(|line| line.starts_with("import ")) {
                let names = line.split_once("{ ").and_then(|(_, rest)| rest.split_once(" }"));
                let (names, _) = names.unwrap_or_else(|| panic!("expected names in braces: {line}"));
                for name in names.split(", ") {
                    assert!(known.contains(name), "{line}: no earlier module declares {name}");
                }
            }
            for name in module.lines().filter_map(declared) {
                assert!(known.insert(name), "{name} is declared twice");
            }
        }
        assert!(!SCRIPT.contains("\nimport ") && !SCRIPT.contains("\nexport "));
    }

    /// Either sequence would end the element early.
    #[test]
    fn nothing_ends_its_element() {
        for text in [UPLOT, STYLE, &SCRIPT] {
            assert!(!text.contains("</") && !text.contains("<!--"));
        }
    }
}
