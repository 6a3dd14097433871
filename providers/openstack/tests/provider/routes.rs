//! Routes of the OpenStack provider on the simulated cloud.

mod life;
mod pairs;
mod several;
mod stage;
mod trouble;
