module ccm-upstream

go 1.26.0

require (
	k8s.io/cloud-provider-aws v1.37.0
	k8s.io/cloud-provider-openstack v1.36.0
)
