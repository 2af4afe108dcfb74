"""The status page without a cluster: a load that the digital twin plays under the operator's own policy."""
