//! Objects below a load balancer, and the effect of their changes on the listings.

use ccm_core::client::{Indexed, IndexedCache};

use crate::{
    client::{Op, listing::Resource},
    load_balancer::{
        reads::Reads,
        responses::{Listener, Monitor, Pool, Provisioning},
    },
};

/// An object below a load balancer.
pub(crate) trait Below: Indexed + Resource + Clone {
    /// The operations that create, update and delete it.
    const OPS: [Op; 3];

    /// The listing of this kind.
    fn cache(reads: &Reads) -> &IndexedCache<Self>;

    /// Sets the state that the object has when the load balancer is active again.
    fn settle(&mut self);

    /// Updates other listings after a creation below this load balancer, also after an unanswered one.
    fn created(_reads: &Reads, _balancer: &str, _created: Option<&Self>) {}

    /// Updates other listings after a deletion, also after an unanswered one.
    fn deleted(_reads: &Reads, _of: (&str, &str, &str), _known: bool) {}
}

macro_rules! below {
    ($($object:ident in $cache:ident by $ops:expr, { $($hooks:tt)* })+) => {$(
        impl Below for $object {
            const OPS: [Op; 3] = $ops;

            fn cache(reads: &Reads) -> &IndexedCache<Self> {
                &reads.$cache
            }

            fn settle(&mut self) {
                self.provisioning_status = Provisioning::Active;
            }

            $($hooks)*
        }
    )+};
}

below! {
    Listener in listeners by [Op::ListenerCreate, Op::ListenerUpdate, Op::ListenerDelete], {}
    Pool in pools by [Op::PoolCreate, Op::PoolUpdate, Op::PoolDelete], {
        fn created(reads: &Reads, balancer: &str, _: Option<&Self>) {
            reads.listeners.invalidate(balancer);
        }

        fn deleted(reads: &Reads, (balancer, _, id): (&str, &str, &str), _: bool) {
            reads.members.forget(id);
            reads.listeners.invalidate(balancer);
            reads.monitors.invalidate(balancer);
        }
    }
    Monitor in monitors by [Op::MonitorCreate, Op::MonitorUpdate, Op::MonitorDelete], {
        fn created(reads: &Reads, balancer: &str, created: Option<&Self>) {
            match created.and_then(|monitor| Some((monitor, monitor.pools.first()?))) {
                Some((monitor, pool)) => reads.pools.update(&pool.id, |pool| {
                    pool.healthmonitor_id.clone_from(&monitor.id);
                }),
                None => reads.pools.invalidate(balancer),
            }
        }

        fn deleted(reads: &Reads, (balancer, pool, _): (&str, &str, &str), known: bool) {
            if known {
                reads.pools.update(pool, |pool| pool.healthmonitor_id.clear());
            } else {
                reads.pools.invalidate(balancer);
            }
        }
    }
}
