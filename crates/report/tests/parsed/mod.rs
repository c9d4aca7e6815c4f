//! An XML parser for pages.

use quick_xml::events::Event;
use quick_xml::{Reader, XmlVersion};

/// Content of a parsed page.
#[derive(Debug, Default, PartialEq)]
pub struct Parsed {
    pub elements: Vec<String>,
    pub texts: Vec<String>,
}

/// Parses well-formed XML. Anything else fails the test.
pub fn parse(xml: &str) -> Parsed {
    let mut reader = Reader::from_str(xml);
    let (mut parsed, mut text, mut depth) = (Parsed::default(), String::new(), 0_usize);
    loop {
        let event = reader.read_event().expect("well-formed");
        match event {
            Event::Text(part) => text.push_str(&part),
            Event::GeneralRef(name) => {
                let entity = format!("&{};", &*name);
                text.push_str(&quick_xml::escape::unescape(&entity).expect("a known entity"));
            }
            Event::Start(start) => {
                depth += 1;
                for attribute in start.attributes() {
                    attribute
                        .expect("quoted, once each")
                        .normalized_value(XmlVersion::Explicit1_0)
                        .expect("escaped");
                }
                parsed.elements.push(start.name().as_ref().to_owned());
                parsed.texts.push(std::mem::take(&mut text));
            }
            Event::End(_) => {
                depth -= 1;
                parsed.texts.push(std::mem::take(&mut text));
            }
            Event::Eof => break,
            other => panic!("a page may contain only elements and text, not {other:?}"),
        }
    }
    assert_eq!(depth, 0, "every element must be closed");
    parsed
}
