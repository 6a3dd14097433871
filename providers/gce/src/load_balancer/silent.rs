//! Zones that do not answer. They do not hold up what does not need them.

use std::{collections::HashMap, time::Duration};

use ccm_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

/// A zone that did not answer is read again after this: each read waits for its timeout.
const SILENT_AGE: Duration = Duration::from_secs(60);

/// The zones that did not answer one kind of read.
#[derive(Debug, Default)]
pub(super) struct SilentZones(Mutex<HashMap<String, (Instant, Error)>>);

impl SilentZones {
    /// The answer of a zone; `None`: it does not answer, or did not a moment ago.
    ///
    /// # Errors
    ///
    /// Those with which the zone answered.
    pub(super) async fn read<T>(
        &self,
        zone: &str,
        read: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        if self.0.lock().get(zone).is_some_and(|(since, _)| since.elapsed() < SILENT_AGE) {
            return Ok(None);
        }
        match read.await {
            Ok(answer) => {
                self.0.lock().remove(zone);
                Ok(Some(answer))
            }
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                let text = error.report();
                if self.0.lock().insert(zone.to_owned(), (Instant::now(), error)).is_none() {
                    warn!(
                        zone,
                        error = text,
                        "A zone does not answer; load balancers keep their members in it"
                    );
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// No zone answers: the error of one of them. All are read again at once.
    ///
    /// # Errors
    ///
    /// That error, if there is one.
    pub(super) fn fail(&self) -> Result<()> {
        match self.0.lock().drain().next() {
            Some((_, (_, error))) => Err(error),
            None => Ok(()),
        }
    }
}
