//! Reading bodies.

use crate::error::Failure;

/// Reads the whole body, if it has at most so many bytes.
pub(super) async fn read(mut response: reqwest::Response, max: usize) -> Result<Vec<u8>, Failure> {
    let announced = response
        .content_length()
        .and_then(|length| usize::try_from(length).ok())
        .unwrap_or(0);
    if announced > max {
        return Err(Failure::TooLarge(max));
    }
    let mut body = Vec::with_capacity(announced);
    while let Some(chunk) = response.chunk().await.map_err(Failure::Transport)? {
        if body.len() + chunk.len() > max {
            return Err(Failure::TooLarge(max));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
