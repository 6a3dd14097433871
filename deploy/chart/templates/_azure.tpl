{{/*
  Takes over the values of the Go program's chart, cloud-provider-azure: infra and cloudControllerManager. With one of them, its
  defaults hold, too: helm reuses only the values that a user set. Values of this chart win.
*/}}
{{- define "ccm.azureUpstream" -}}
{{- $given := .Values.cloudControllerManager | default dict -}}
{{- if eq (toString $given.enabled) "false" -}}
  {{- fail "cloudControllerManager.enabled: false, and this chart has nothing else to install; set it to true" -}}
{{- end -}}
{{- $theirs := mergeOverwrite (.Files.Get "defaults/azure-upstream.yaml" | fromYaml) $given -}}
{{- if or .Values.cloudConfigContents (.Values.secret).enabled -}}
  {{- $_ := set $theirs "cloudConfig" "" -}}
{{- end -}}
{{- $flags := .Files.Get "defaults/azure-upstream-flags.yaml" | fromYaml -}}
{{- $ignored := list -}}
{{- range $key, $_ := $given -}}
  {{- if not (or (hasKey $flags $key) (has $key (include "ccm.azureValues" $ | fromYamlArray))) -}}
    {{- $ignored = append $ignored (printf "cloudControllerManager.%s" $key) -}}
  {{- end -}}
{{- end -}}
{{- if .Values.cloudNodeManager -}}
  {{- $ignored = append $ignored "cloudNodeManager" -}}
{{- end -}}
{{- $_ := set .Values "ignoredAzure" $ignored -}}
{{- if not (.Values.cluster).name -}}
  {{- $_ := set .Values "cluster" (dict "name" ((.Values.infra).clusterName | default "kubernetes")) -}}
{{- end -}}
{{- $args := list -}}
{{- range $key, $flag := $flags -}}
  {{- $value := get $theirs $key -}}
  {{- if and (hasKey $theirs $key) (ne (toString $value) "") (not (include "ccm.flag" (list ($.Values.args | default list) $flag))) -}}
    {{- $args = append $args (printf "--%s=%v" $flag $value) -}}
  {{- end -}}
{{- end -}}
{{- $_ := concat (.Values.args | default list) $args | set .Values "args" -}}
{{- with $given.controllers -}}
  {{- /* No node manager initializes nodes any more. */ -}}
  {{- $controllers := without (splitList "," (. | toString | nospace)) "-cloud-node" "-cloud-node-controller" -}}
  {{- if not (hasKey $.Values "enabledControllers") -}}
    {{- $_ := set $.Values "enabledControllers" $controllers -}}
  {{- end -}}
{{- end -}}
{{- with $given.logVerbosity -}}{{- $_ := set $.Values "logVerbosityLevel" (toString .) -}}{{- end -}}
{{- with $given.imagePullPolicy -}}{{- $_ := set $.Values.image "pullPolicy" (. | default $.Values.image.pullPolicy) -}}{{- end -}}
{{- /* Name, kind and selector of the Go program, so that an upgrade changes its Deployment in place. */ -}}
{{- $values := dict
  "securePort" (int $theirs.securePort)
  "updateStrategy" (dict "type" "RollingUpdate" "rollingUpdate" (dict "maxSurge" 0 "maxUnavailable" 1))
  "kind" "Deployment"
  "nameOverride" "cloud-controller-manager"
  "fixed" (dict "selector" "{component: cloud-controller-manager, tier: control-plane}") -}}
{{- range list "nodeSelector" "replicas" -}}
  {{- if hasKey $given . -}}{{- $_ := get $given . | set $values . -}}{{- end -}}
{{- end -}}
{{- with $given.tolerations -}}
  {{- /* The Pods must run before nodes are initialized. */ -}}
  {{- $_ := concat . ($.Files.Get "defaults/cluster.yaml" | fromYaml).tolerations | uniq | set $values "tolerations" -}}
{{- end -}}
{{- include "ccm.merge" (list .Values $values) -}}
{{- with $given.containerResourceManagement -}}
  {{- $resources := dict -}}
  {{- range $key, $place := dict "requestsCPU" (list "requests" "cpu") "requestsMem" (list "requests" "memory") "limitsCPU" (list "limits" "cpu") "limitsMem" (list "limits" "memory") -}}
    {{- with get $.Values.cloudControllerManager.containerResourceManagement $key -}}
      {{- $_ := dict (first $place) (dict (last $place) .) | mergeOverwrite $resources -}}
    {{- end -}}
  {{- end -}}
  {{- $_ := mergeOverwrite $.Values.resources $resources -}}
{{- end -}}
{{- $tokens := dict "serviceAccountToken" (dict "path" "azure-identity-token" "audience" "api://AzureADTokenExchange" "expirationSeconds" 3600) -}}
{{- $volumes := list
  (dict "name" "etc-ssl" "hostPath" (dict "path" $theirs.caCertDir))
  (dict "name" "azure-identity-token" "projected" (dict "sources" (list $tokens))) -}}
{{- $mounts := list
  (dict "name" "etc-ssl" "mountPath" "/etc/ssl" "readOnly" true)
  (dict "name" "azure-identity-token" "mountPath" $theirs.federatedTokenPath "readOnly" true) -}}
{{- $secret := .Values.secret | default dict -}}
{{- if not (hasKey $secret "enabled") -}}
  {{- $_ := set $secret "enabled" (empty .Values.cloudConfigContents | not) -}}
{{- end -}}
{{- $_ := set .Values "secret" $secret -}}
{{- if and $theirs.cloudConfig (not $secret.enabled) -}}
  {{- $volumes = append $volumes (dict "name" "etc-kubernetes" "hostPath" (dict "path" "/etc/kubernetes")) -}}
  {{- $mounts = append $mounts (dict "name" "etc-kubernetes" "mountPath" "/etc/kubernetes" "readOnly" true) -}}
  {{- /* On many hosts, only root may read the config. */ -}}
  {{- if eq (toString .Values.podSecurityContext.runAsUser) "65532" -}}
    {{- $_ := mergeOverwrite .Values.podSecurityContext (dict "runAsUser" 0 "runAsGroup" 0) -}}
  {{- end -}}
{{- end -}}
{{- if not .Values.hosted -}}
  {{- include "ccm.merge" (list .Values (dict "extraVolumes" $volumes "extraVolumeMounts" $mounts)) -}}
{{- end -}}
{{- end -}}

{{/* The keys of cloudControllerManager that are no flags. */}}
{{- define "ccm.azureValues" -}}
[enabled, caCertDir, containerResourceManagement, controllers, federatedTokenPath, imageName, imagePullPolicy, imageRepository, imageTag, logVerbosity, nodeSelector, replicas, securePort, tolerations, updateStrategy]
{{- end -}}
