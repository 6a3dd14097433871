//! The keys of a provider's parts.

/// The kind of a part.
pub trait PartKind {
    /// The kind, as a metric label: `lb`, `sg`.
    fn kind(&self) -> &'static str;
}

/// Defines the enum of a provider's part keys: a line for each variant with its text. The text is followed by the ID or
/// name that the variant holds, if it holds one. Keys are written by `Display` and read by `FromStr`, where the longest text
/// that fits wins. The [kind](PartKind) is the text up to the first `/`.
///
/// ```
/// use ccm_core::plan::PartKind;
///
/// ccm_core::plan::part_keys! {
///     /// The parts.
///     pub enum Key {
///         /// The load balancer with this ID.
///         LoadBalancer(String) = "lb/";
///         /// The load balancer with this name, which does not exist yet.
///         New(String) = "lb/new:";
///         /// The rules of all nodes.
///         Nodes = "nodes";
///     }
/// }
///
/// assert_eq!("lb/new:web".parse(), Ok(Key::New("web".to_owned())));
/// assert_eq!(Key::LoadBalancer("7".to_owned()).to_string(), "lb/7");
/// assert_eq!((Key::New("web".to_owned()).kind(), Key::Nodes.kind()), ("lb", "nodes"));
/// assert_eq!("nodes/1".parse::<Key>(), Err(()));
/// ```
#[macro_export]
macro_rules! part_keys {
    (
        $(#[$about:meta])*
        $vis:vis enum $name:ident {
            $($(#[$meaning:meta])* $kind:ident $(($id:ident))? = $text:literal;)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis enum $name {
            $($(#[$meaning])* $kind $(($id))?,)+
        }

        impl $crate::plan::PartKind for $name {
            fn kind(&self) -> &'static str {
                let text = match self {
                    $(Self::$kind { .. } => $text,)+
                };
                text.split_once('/').map_or(text, |(kind, _)| kind)
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                match self {
                    $($crate::part_keys!(@pattern $kind rest $($id)?) =>
                        $crate::part_keys!(@write f $text, rest $($id)?),)+
                }
            }
        }

        impl ::core::str::FromStr for $name {
            type Err = ();

            fn from_str(text: &str) -> ::core::result::Result<Self, ()> {
                let mut best: ::core::option::Option<(usize, Self)> = None;
                $(
                    if let Some(rest) = text.strip_prefix($text)
                        && best.as_ref().is_none_or(|(length, _)| *length < $text.len())
                    {
                        $crate::part_keys!(@read best, $kind, $text.len(), rest $($id)?);
                    }
                )+
                best.map(|(_, key)| key).ok_or(())
            }
        }
    };
    (@pattern $kind:ident $rest:ident $id:ident) => { Self::$kind($rest) };
    (@pattern $kind:ident $rest:ident) => { Self::$kind };
    (@write $f:ident $text:literal, $rest:ident $id:ident) => { ::core::write!($f, "{}{}", $text, $rest) };
    (@write $f:ident $text:literal, $rest:ident) => { $f.write_str($text) };
    (@read $best:ident, $kind:ident, $length:expr, $rest:ident $id:ident) => {
        $best = $rest.parse().ok().map(|id| ($length, Self::$kind(id))).or($best)
    };
    (@read $best:ident, $kind:ident, $length:expr, $rest:ident) => {
        if $rest.is_empty() {
            $best = Some(($length, Self::$kind));
        }
    };
}
