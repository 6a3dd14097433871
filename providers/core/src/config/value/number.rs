//! Numbers as the Go library reads them.

use super::ValueError;

/// The range of an integer type.
pub(super) trait Integer: TryFrom<i128> {
    const MIN: i128;
    const MAX: i128;
}

macro_rules! integers {
    ($($type:ident)*) => {$(
        impl Integer for $type {
            const MIN: i128 = $type::MIN as i128;
            const MAX: i128 = $type::MAX as i128;
        }
    )*};
}

integers! { i8 i16 i32 i64 u8 u16 u32 u64 }

/// Reads an integer; `go` is the type's name in the error text.
pub(super) fn integer<T: Integer>(text: Result<&str, ValueError>, go: &str) -> Result<T, ValueError> {
    let hint = || match (T::MIN, T::MAX) {
        (0, max) if max == i128::from(u64::MAX) => "write a whole number, zero or more".to_owned(),
        (min, _) if min == i128::from(i64::MIN) => "write a whole number".to_owned(),
        (min, max) => format!("write a whole number from {min} to {max}"),
    };
    let text = text.map_err(|error| error.hint(hint()))?;
    let failed = |why: &str| ValueError::new(format!("failed to parse {text:?} as {go}: {why}")).hint(hint());
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(failed("unexpected end"));
    }
    let signed = T::MIN < 0;
    if !signed && trimmed.starts_with('-') {
        return Err(failed("it is negative"));
    }
    let number = read(trimmed, signed).ok_or_else(|| failed("expected integer"))?;
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| failed("integer overflow"))
}

/// `None` if the text is not a number, `Some(None)` if the number does not fit.
fn read(text: &str, signed: bool) -> Option<Option<i128>> {
    // An unsigned number has no sign, and a hexadecimal number has no plus.
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) if signed => (true, rest),
        _ => (false, text),
    };
    let (radix, digits) = match digits.strip_prefix("0x") {
        Some(hex) => (16, without_separators(hex)?),
        None if negative || !signed => (10, digits.to_owned()),
        None => (10, digits.strip_prefix('+').unwrap_or(digits).to_owned()),
    };
    if digits.is_empty() || !digits.chars().all(|ch| ch.is_digit(radix)) {
        return None;
    }
    let magnitude = i128::from_str_radix(&digits, radix).ok();
    Some(magnitude.map(|number| if negative { -number } else { number }))
}

/// Hexadecimal digits may have single `_` between them and after the `0x`.
fn without_separators(digits: &str) -> Option<String> {
    let rest = digits.strip_prefix('_').unwrap_or(digits);
    if rest.starts_with('_') || rest.ends_with('_') || rest.contains("__") {
        return None;
    }
    Some(rest.replace('_', ""))
}

/// Reads a number with a decimal point.
pub(super) fn float(text: Result<&str, ValueError>) -> Result<f64, ValueError> {
    let hint = "write a number such as 1.5";
    let text = text.map_err(|error| error.hint(hint))?;
    match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(ValueError::new(format!("failed to parse {text:?} as float64")).hint(hint)),
    }
}
