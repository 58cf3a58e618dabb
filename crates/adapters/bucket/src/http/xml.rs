//! XML replies, parsed into a small tree. Any input yields a tree or `None`, never a panic: depth
//! and size are bounded.

use super::MAX_PARTS;
use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use std::borrow::Cow;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Element<'a> {
    pub name: &'a str,
    pub text: Cow<'a, str>,
    pub attributes: Vec<(String, String)>,
    pub children: Vec<Element<'a>>,
}

impl<'a> Element<'a> {
    /// The root element, or `None` where the text is not well-formed to its end.
    pub fn parse(bytes: &'a [u8]) -> Option<Element<'a>> {
        let text = std::str::from_utf8(bytes).ok()?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reader = Reader::from_str(text);
        let mut open: Vec<Element> = Vec::new();
        let mut parts_left = MAX_PARTS;
        loop {
            let begin = reader.buffer_position() as usize;
            let finished = match reader.read_event().ok()? {
                Event::Start(start) => {
                    if open.len() == MAX_DEPTH {
                        return None;
                    }
                    open.push(Element::opened(&start, text.get(begin..)?, &mut parts_left)?);
                    None
                }
                Event::Empty(start) => {
                    Some(Element::opened(&start, text.get(begin..)?, &mut parts_left)?)
                }
                Event::End(_) => Some(open.pop()?),
                Event::Text(piece) => {
                    add_text(&mut open, piece.into_inner());
                    None
                }
                Event::CData(piece) => {
                    add_text(&mut open, piece.into_inner());
                    None
                }
                Event::GeneralRef(reference) => {
                    match reference.resolve_char_ref().ok()? {
                        Some(character) => add_text(&mut open, String::from(character).into()),
                        None => add_text(&mut open, resolve_predefined_entity(&reference)?.into()),
                    }
                    None
                }
                Event::Eof => return None,
                _ => None,
            };
            if let Some(element) = finished {
                match open.last_mut() {
                    Some(parent) => parent.children.push(element),
                    None => return Some(element),
                }
            }
        }
    }

    /// `text` begins with it.
    fn opened(
        start: &BytesStart<'_>,
        text: &'a str,
        parts_left: &mut usize,
    ) -> Option<Element<'a>> {
        *parts_left = parts_left.checked_sub(1)?;
        let mut attributes = Vec::new();
        // The check for duplicates takes quadratic time.
        for found in start.attributes().with_checks(false).flatten() {
            *parts_left = parts_left.checked_sub(1)?;
            // No attribute that is read can contain an entity reference.
            attributes.push((found.key.as_ref().to_string(), found.value.to_string()));
        }
        let (name, local) = (start.name(), start.local_name());
        let before = name.as_ref().len() - local.as_ref().len();
        let name = text.strip_prefix('<')?.get(before..name.as_ref().len())?;
        Some(Element { name, attributes, ..Element::default() })
    }

    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(there, _)| there == name).map(|(_, value)| value.as_str())
    }

    pub fn child(&self, name: &str) -> Option<&Element<'a>> {
        self.children.iter().find(|child| child.name == name)
    }

    pub fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(|child| &*child.text)
    }

    pub fn all<'b>(&'b self, name: &'b str) -> impl Iterator<Item = &'b Element<'a>> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// Text content with the five characters replaced that XML reserves.
pub(crate) fn escape(text: &str) -> String {
    quick_xml::escape::escape(text).into_owned()
}

fn add_text<'a>(open: &mut [Element<'a>], text: Cow<'a, str>) {
    if let Some(element) = open.last_mut() {
        element.text += text;
    }
}

/// Answers are five levels deep.
const MAX_DEPTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_read_with_its_references() {
        let page = Element::parse(
            b"<?xml version=\"1.0\"?>\n<L \
            xmlns=\"x\"><K>a&amp;b&#233;<![CDATA[<]]></K><E/><K>2</K></L>",
        )
        .unwrap();
        assert_eq!(page.text_of("K"), Some("a&b\u{e9}<"));
        assert_eq!(page.all("K").count(), 2);
        assert_eq!(page.text_of("E"), Some(""));
    }

    #[test]
    fn malformed_xml_is_rejected() {
        let deep = "<a>".repeat(1000);
        for text in [
            "",
            "<",
            "<a>",
            "</a>",
            "<a></b>",
            "<a>&unknown;</a>",
            "<a>&#xD800;</a>",
            "plain",
            // The parser accepts one of them.
            "\u{feff}\u{feff}<a></a>",
            "<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
            &deep,
        ] {
            assert_eq!(Element::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Element::parse(b"<a>\xff</a>"), None);
    }

    #[test]
    fn parts_beyond_the_limit_are_rejected() {
        let children = |count: usize| format!("<a>{}</a>", "<b/>".repeat(count));
        assert_eq!(
            Element::parse(children(MAX_PARTS - 1).as_bytes()).unwrap().children.len(),
            MAX_PARTS - 1
        );
        assert_eq!(Element::parse(children(MAX_PARTS).as_bytes()), None);
        let attributes: String = (0..MAX_PARTS).map(|at| format!(" a{at}=\"\"")).collect();
        assert_eq!(Element::parse(format!("<a{attributes}/>").as_bytes()), None);
    }

    /// Every cut and every flipped byte of a real answer ends in a tree or in nothing.
    #[test]
    fn damaged_answers_do_not_panic() {
        let answer = b"<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>a &lt;b&gt; \
            &#xe9;</Message></Error>"
            .to_vec();
        for at in 0..answer.len() {
            let _tree = Element::parse(&answer[..at]);
            for value in [0, b'<', b'>', b'&', 0xff] {
                let mut damaged = answer.clone();
                damaged[at] = value;
                let _tree = Element::parse(&damaged);
            }
        }
    }
}
