//! Checks of permissions by API calls that change nothing.

use aws_sdk_ec2::types::Tag;
use aws_smithy_runtime_api::client::{orchestrator::HttpResponse, result::SdkError};
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use ccm_core::{Error, ErrorKind, Result, check::in_time};
use futures_util::future::{BoxFuture, join_all};

use super::{Client, Op, connect::SdkClients};

/// The documentation's example network: no cluster has Pods there.
const NETWORK: &str = "192.0.2.0/24";

impl Client {
    /// The ARN of the identity that the credentials belong to.
    ///
    /// # Errors
    ///
    /// STS cannot be reached, or refuses the credentials.
    pub(crate) async fn caller(&self) -> Result<String> {
        let reply = self.call(Op::CallerIdentity, |sdk| sdk.sts.get_caller_identity().send()).await?;
        Ok(reply.arn.unwrap_or_default())
    }

    /// Tries operations, those for routes only with a route table. Writes are dry runs; reads are as small as possible.
    /// [`ErrorKind::PermissionDenied`] means that an operation is not allowed; any other error, that this could not be
    /// checked.
    pub(crate) async fn try_out(&self, vpc: &str, table: Option<&str>) -> Vec<(Op, Result<()>)> {
        let tag = Tag::builder().key("validate").value("").build();
        let mut trials = vec![
            self.trial(Op::Instances, |sdk| sdk.ec2.describe_instances().dry_run(true).send()),
            self.trial(Op::Subnets, |sdk| sdk.ec2.describe_subnets().dry_run(true).send()),
            self.trial(Op::Zones, |sdk| sdk.ec2.describe_availability_zones().dry_run(true).send()),
            self.trial(Op::SecurityGroups, |sdk| sdk.ec2.describe_security_groups().dry_run(true).send()),
            self.trial(Op::SecurityGroupCreate, |sdk| {
                sdk.ec2
                    .create_security_group()
                    .dry_run(true)
                    .group_name("validate")
                    .description("validate")
                    .vpc_id(vpc)
                    .send()
            }),
            self.trial(Op::TagsCreate, |sdk| {
                sdk.ec2.create_tags().dry_run(true).resources(vpc).tags(tag.clone()).send()
            }),
            self.trial(Op::LoadBalancers, |sdk| sdk.elbv2.describe_load_balancers().page_size(1).send()),
            self.trial(Op::ClassicLoadBalancers, |sdk| sdk.elb.describe_load_balancers().page_size(1).send()),
            self.trial(Op::TargetGroups, |sdk| sdk.elbv2.describe_target_groups().page_size(1).send()),
        ];
        if let Some(table) = table {
            trials.extend([
                self.trial(Op::RouteCreate, move |sdk| {
                    sdk.ec2
                        .create_route()
                        .dry_run(true)
                        .route_table_id(table)
                        .destination_cidr_block(NETWORK)
                        .gateway_id("local")
                        .send()
                }),
                self.trial(Op::RouteReplace, move |sdk| {
                    sdk.ec2
                        .replace_route()
                        .dry_run(true)
                        .route_table_id(table)
                        .destination_cidr_block(NETWORK)
                        .local_target(true)
                        .send()
                }),
                self.trial(Op::RouteDelete, move |sdk| {
                    sdk.ec2
                        .delete_route()
                        .dry_run(true)
                        .route_table_id(table)
                        .destination_cidr_block(NETWORK)
                        .send()
                }),
            ]);
        }
        join_all(trials).await
    }

    /// Tries an operation. A dry run is not a write, so fences do not apply.
    fn trial<'a, T, E, F, Fut>(&'a self, op: Op, request: F) -> BoxFuture<'a, (Op, Result<()>)>
    where
        T: Send + 'a,
        F: Fn(&SdkClients) -> Fut + Send + Sync + 'a,
        Fut: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send + 'a,
        E: ProvideErrorMetadata + std::error::Error + Send + 'static,
    {
        Box::pin(async move {
            let result = in_time(self.execute(Op::DryRun, request)).await;
            (op, result.or_else(allowed))
        })
    }
}

/// The result of a dry run. A request that would have succeeded, or that fails for another reason than a missing permission,
/// is allowed.
fn allowed(error: Error) -> Result<()> {
    match (crate::error::code(&error), error.kind()) {
        (Some("DryRunOperation"), _) => Ok(()),
        (Some(_), ErrorKind::InvalidSpec | ErrorKind::NotFound | ErrorKind::AlreadyExists) => Ok(()),
        _ => Err(error),
    }
}
