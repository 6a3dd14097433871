//! The operations of a provider.

use std::{fmt::Debug, hash::Hash};

/// One kind of cloud call. Each provider has one enum of them, so that no caller writes metric labels, quota buckets or
/// retry rules itself.
pub trait Operation: Copy + Eq + Hash + Debug + Send + Sync + 'static {
    /// The metric label and the span's `operation`, such as `server_get`.
    fn name(self) -> &'static str;

    /// The quota bucket it draws from, such as `compute`. Calls that the cloud counts together share one.
    fn bucket(self) -> &'static str;

    /// The effect of sending it twice.
    fn effect(self) -> Effect;
}

/// The effect of a call on the cloud. It decides when the call may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// No change. Repeated on every error that allows it.
    Read,
    /// A change with the same result if it is sent twice (`PUT` of a whole object, `DELETE`). Repeated like a read.
    IdempotentWrite,
    /// A change that might be done twice if it is sent twice (`POST`). Repeated only if the cloud refused it because of its rate.
    Write,
}

/// Defines the enum of a provider's calls, with its [`Operation`]: a line for each call with its name, its quota bucket and
/// its [`Effect`]. `ALL` lists the calls.
///
/// ```
/// use ccm_core::client::{Effect, Operation, operations};
///
/// operations! {
///     /// The calls of the cloud.
///     pub enum Op {
///         /// One server.
///         ServerGet = "server_get", "compute", Read;
///         /// A new volume.
///         VolumeCreate = "volume_create", "storage", Write;
///     }
/// }
///
/// assert_eq!(Op::VolumeCreate.bucket(), "storage");
/// assert_eq!(Op::ALL.len(), 2);
/// ```
#[macro_export]
macro_rules! operations {
    (
        $(#[$about:meta])*
        $vis:vis enum $name:ident {
            $($(#[$meaning:meta])* $op:ident = $label:expr, $bucket:expr, $effect:ident;)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name {
            $($(#[$meaning])* $op,)+
        }

        impl $name {
            /// All calls, in the order of their declaration.
            #[allow(dead_code, reason = "a provider need not list its calls")]
            $vis const ALL: &'static [Self] = &[$(Self::$op),+];
        }

        impl $crate::client::Operation for $name {
            fn name(self) -> &'static str {
                match self {
                    $(Self::$op => $label,)+
                }
            }

            fn bucket(self) -> &'static str {
                match self {
                    $(Self::$op => $bucket,)+
                }
            }

            fn effect(self) -> $crate::client::Effect {
                match self {
                    $(Self::$op => $crate::client::Effect::$effect,)+
                }
            }
        }
    };
}
