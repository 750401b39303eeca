//! Escapes characters that HTML, an attribute or a script element would read as more than text.

/// Text for an element or a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// A sentence; text between two single backticks is code.
pub(super) fn inline(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    // Code needs a closing backtick and text in between: otherwise the backticks are literal.
    let is_paired = parts.len() % 2 == 1 && parts.iter().skip(1).step_by(2).all(|code| !code.trim().is_empty());
    if !is_paired {
        return escape(text);
    }
    let part = |(index, part): (usize, &&str)| match index % 2 {
        1 => format!("<code>{}</code>", escape(part)),
        _ => escape(part),
    };
    parts.iter().enumerate().map(part).collect()
}

/// JSON for a script element: no tag, comment or line separator can begin in it. A parser reads the same values.
pub(super) fn script_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.trim_end().chars() {
        match c {
            // In JSON these can only stand inside strings, where an escape means the same.
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => escaped.push_str(&format!("\\u{:04x}", c as u32)),
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(
            escape("<img src=x onerror='a()'> & \"b\""),
            "&lt;img src=x onerror=&#39;a()&#39;&gt; &amp; &quot;b&quot;"
        );
        assert_eq!(inline("call `a<b>()` <i>"), "call <code>a&lt;b&gt;()</code> &lt;i&gt;");
        assert_eq!(inline("a ` alone"), "a ` alone");
    }

    #[test]
    fn json_cannot_leave_its_script() {
        let hostile = serde_json::json!({ "name": "</script><script>alert(1)</script><!-- \u{2028} &amp;" });
        let text = script_json(&hostile.to_string());
        assert!(!text.contains(['<', '>', '&', '\u{2028}']), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), hostile);
    }
}
