//! Azure. The provider has no load balancers yet, so that it has no test cloud.

use super::DocumentsConfig;

/// The config that the documents require.
pub(super) const DOCUMENTS_CONFIG: DocumentsConfig = DocumentsConfig {
    file: "resourceManagerEndpoint: http://127.0.0.1:1/\ntenantId: none\nsubscriptionId: none\nresourceGroup: none\nlocation: none\n\
           aadClientId: none\naadClientSecret: none\n",
    environment: &[],
};
