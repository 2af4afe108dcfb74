{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- /* The security context of a pod, without ids where the platform assigns them. */ -}}
{{- define "holdfast.podSecurity" -}}
{{- $context := .context -}}
{{- if .root.Values.settings.platformAssignsIds -}}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" "supplementalGroups" -}}
{{- end -}}
{{- toYaml $context -}}
{{- end }}

{{- /* Only targets in the operator's namespace are believed to be the operator. */ -}}
{{- define "holdfast.rulefile" -}}
{{- $file := required "files/monitoring/rules.yaml is missing: make generate" (.Files.Get "files/monitoring/rules.yaml") -}}
{{- $file | replace "RELEASE_NAMESPACE" (.Values.monitoring.rules.operatorNamespace | default .Release.Namespace) -}}
{{- end }}

{{- /* A digest names the very image; a runtime ignores a tag next to it. */ -}}
{{- define "holdfast.imageOf" -}}
{{- .image.repository }}{{ if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .version }}{{ end }}
{{- end }}

{{- define "holdfast.image" -}}
{{- if hasPrefix "REGISTRY/" .Values.image.repository -}}
{{- $where := "in a checkout run `make trial` and install with --values build/trial/values.yaml" -}}
{{- $registry := "or set image.repository to where `make release publish` put the image (docs/releases.md)" -}}
{{- fail (printf "image.repository: %s is a placeholder, and no cluster can pull it; %s, %s" .Values.image.repository $where $registry) -}}
{{- end -}}
{{- include "holdfast.imageOf" (dict "image" .Values.image "version" .Chart.AppVersion) -}}
{{- end }}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Labels of one object. Labels from its own values override all others of the same name. */ -}}
{{- define "holdfast.labelsWith" -}}
{{- toYaml (merge (dict) (.more | default dict) (include "holdfast.labels" .root | fromYaml)) -}}
{{- end }}

{{- define "holdfast.prometheus.labels" -}}
{{ include "holdfast.prometheus.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "holdfast.prometheus.selector" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: prometheus
{{- end }}

{{- define "holdfast.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if .Values.serviceAccount.create -}}
{{- include "holdfast.fullname" . -}}
{{- else -}}
{{- fail "serviceAccount.name: name the existing account, or leave serviceAccount.create true" -}}
{{- end -}}
{{- end }}

{{- /* One flag per setting that is given; the bundled Prometheus answers for what it knows. */ -}}
{{- define "holdfast.flags" -}}
{{- $settings := .Values.settings -}}
{{- if .Values.prometheus.enabled -}}
{{- $known := dict "prometheusUrl" (printf "http://%s-prometheus.%s.svc:9090" (include "holdfast.fullname" .) .Release.Namespace) "scrapeInterval" .Values.prometheus.scrapeInterval -}}
{{- range $name, $value := $known -}}
{{- if not (get $settings $name) -}}{{- $settings = merge (dict $name $value) $settings -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $settings.activatorImage -}}
{{- $settings = merge (dict "activatorImage" (include "holdfast.image" .)) $settings -}}
{{- end -}}
{{- $_ := required "settings.prometheusUrl: name your Prometheus, or set prometheus.enabled=true for a small one to try with" $settings.prometheusUrl -}}
{{- include "holdfast.check" (dict "settings" $settings "watched" .Values.watchNamespaces) -}}
{{- range $name, $value := $settings }}
{{- $flag := printf "--%s" (kebabcase $name) }}
{{- if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "%s=%s" $flag . | quote }}
{{- end }}
{{- else if kindIs "bool" $value }}
{{- if $value }}
- {{ $flag | quote }}
{{- end }}
{{- else if $value | toString }}
- {{ printf "%s=%v" $flag $value | quote }}
{{- end }}
{{- end }}
{{- range .Values.watchNamespaces }}
- {{ printf "--namespace=%s" . | quote }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- /* The namespaces that maxPriority or namespaceShare name, as a list; empty if there is none. */ -}}
{{- define "holdfast.limitedNamespaces" -}}
{{- $names := list -}}
{{- range concat .Values.settings.maxPriority .Values.settings.namespaceShare -}}
{{- $names = append $names (splitList "=" . | first) -}}
{{- end -}}
{{- with without ($names | uniq | sortAlpha) "*" }}{{ toJson . }}{{ end -}}
{{- end }}

{{- /* What the operator does in the namespaces it watches, and nothing else. */ -}}
{{- define "holdfast.rules" -}}
- apiGroups: [holdfast.dev]
  resources: [llmservices, llmbenchmarks]
  verbs: [get, list, watch]
- apiGroups: [holdfast.dev]
  resources: [llmservices/status, llmbenchmarks/status]
  verbs: [patch]
- apiGroups: [batch]
  resources: [jobs]                # of LLMBenchmarks; their pods may do nothing at the API server
  verbs: [get, create, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments/scale]   # replicas are written here and nowhere else
  verbs: [get, patch]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]    # of accelerators with nodes
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets/scale]
  verbs: [get, patch]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]   # whether one sizes a Deployment that an LLMService names as target
  verbs: [list]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [list]
- apiGroups: [autoscaling.aibrix.ai]
  resources: [podautoscalers]
  verbs: [list]
- apiGroups: [apps]
  resources: [replicasets]         # which pod files are still in use
  verbs: [list]
- apiGroups: [""]
  resources: [serviceaccounts]     # these go with their LLMService, by owner reference
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]            # deleted: those of activators and routers that are no longer wanted
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]          # deleted: pod files of earlier revisions, limits of engines without the plugin
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]   # access modes
  verbs: [get]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]      # of services with inferencePool
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]                # patch: pod-deletion-cost and engine-limits; delete: leaders of sick groups
  verbs: [list, watch, patch, delete]
- apiGroups: [""]
  resources: [resourcequotas]      # how many GPUs a namespace may have; only read
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{- /* The privileges that pod templates may use, as a list. */ -}}
{{- define "holdfast.granted" -}}
{{- $granted := .Values.settings.allowTemplate -}}
{{- range .Values.extraArgs -}}
{{- if hasPrefix "--allow-template=" . -}}{{- $granted = append $granted (trimPrefix "--allow-template=" .) -}}{{- end -}}
{{- end -}}
{{- toJson $granted -}}
{{- end }}

{{- /* By privilege: what holds of pods that do not use it, as an expression of the admission policy. */ -}}
{{- define "holdfast.withoutPrivilege" -}}
hostNetwork: >-
  (variables.pods.all(pod, !pod.?hostNetwork.orValue(false))
  && variables.containers.all(each, each.?ports.orValue([]).all(port, port.?hostPort.orValue(0) == 0)))
hostPID: variables.pods.all(pod, !pod.?hostPID.orValue(false))
hostIPC: variables.pods.all(pod, !pod.?hostIPC.orValue(false))
hostPath: variables.pods.all(pod, pod.?volumes.orValue([]).all(volume, !has(volume.hostPath)))
hostProcess: >-
  (variables.pods.all(pod, !pod.?securityContext.?windowsOptions.?hostProcess.orValue(false))
  && variables.containers.all(each, !each.?securityContext.?windowsOptions.?hostProcess.orValue(false)))
privileged: >-
  variables.containers.all(each, !each.?securityContext.?privileged.orValue(false)
  && each.?securityContext.?capabilities.?add.orValue([]).size() == 0
  && each.?securityContext.?procMount.orValue('Default') == 'Default')
# A Job that tunes runs as the service that it measures, which does not own it.
serviceAccountName: >-
  variables.pods.all(pod, !pod.?automountServiceAccountToken.orValue(true)
  && pod.?volumes.orValue([]).all(volume, volume.?projected.?sources.orValue([]).all(source,
  !has(source.serviceAccountToken) && !has(source.podCertificate)))
  && (request.resource.resource == 'jobs'
  || pod.?serviceAccountName.orValue('default') in ['default'] + variables.owners))
{{- end }}
