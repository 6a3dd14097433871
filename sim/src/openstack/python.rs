//! Values in the format of Python, as the services show them in messages.

use serde_json::Value;

/// A value in Python's format.
pub(crate) fn python(value: &Value) -> String {
    let quoted = |value: &Value| match value {
        Value::String(text) => format!("'{text}'"),
        other => python(other),
    };
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            let list: Vec<String> = list.iter().map(quoted).collect();
            format!("[{}]", list.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("'{key}': {}", quoted(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}
