{{- /* A duration such as 500ms in seconds; what is none is refused by values.schema.json. */ -}}
{{- define "holdfast.seconds" -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $factor := get (dict "ms" "0.001" "s" "1" "m" "60" "h" "3600" "d" "86400") $unit -}}
{{- mulf (trimSuffix $unit . | float64) (float64 $factor) -}}
{{- end }}

{{- /* What `holdfast run` refuses is refused here, in its words: a pod would end over and over instead. */ -}}
{{- define "holdfast.check" -}}
{{- $settings := .settings -}}
{{- $least := list
  (list "tick" 1 "--tick: must be at least 1s; use 5s to 10s for most clusters")
  (list "scrapeInterval" 1 "--scrape-interval: must be at least 1s; set the scrape interval of your Prometheus, 15s by default")
  (list "startupTimeout" 10 "--startup-timeout: must be at least 10s; use 30m for large models from a slow registry")
  (list "leaseDuration" 5 "--lease-duration: must be at least 5s; 15s is the default") -}}
{{- range $least -}}
{{- $given := get $settings (first .) -}}
{{- if and $given (lt (include "holdfast.seconds" $given | float64) (index . 1 | float64)) -}}{{- fail (last .) -}}{{- end -}}
{{- end -}}
{{- $taken := dict (toString (int $settings.httpPort)) "--http-port" -}}
{{- range $next := list (list "--health-port" $settings.healthPort) (list "--status-port" $settings.statusPort) -}}
{{- $port := index $next 1 | int -}}
{{- with get $taken (toString $port) -}}
{{- fail (printf "%s: %d is already %s; choose another port" (first $next) $port .) -}}
{{- end -}}
{{- if $port -}}{{- $_ := set $taken (toString $port) (first $next) -}}{{- end -}}
{{- end -}}
{{- if and $settings.statusPort (not $settings.statusTokenFile) (not $settings.statusOpen) -}}
{{- fail "--status-port: the page asks for a token; name its file with --status-token-file, or set --status-open if every client of the port may read it" -}}
{{- end -}}
{{- range $settings.podMonitorLabel -}}
{{- if hasPrefix "holdfast.dev/" . -}}
{{- $remedy := "choose another one; label NAME=VALUE of every PodMonitor, by which Prometheus selects them; may be repeated" -}}
{{- fail (printf "--pod-monitor-label: label %s is reserved for Holdfast; %s" (splitList "=" . | first) $remedy) -}}
{{- end -}}
{{- end -}}
{{- $images := list -}}
{{- range $settings.engineImage -}}
{{- $image := splitList "=" . | first -}}
{{- if has $image $images -}}{{- fail (printf "--engine-image: image %s is named twice; keep one of its copies" $image) -}}{{- end -}}
{{- $images = append $images $image -}}
{{- end -}}
{{- range $flag, $limits := dict "--max-priority" $settings.maxPriority "--namespace-share" $settings.namespaceShare -}}
{{- $named := list -}}
{{- range $limits -}}
{{- $name := splitList "=" . | first -}}
{{- if has $name $named -}}{{- fail (printf "%s: namespace %s is named twice; keep one of its limits" $flag $name) -}}{{- end -}}
{{- $named = append $named $name -}}
{{- end -}}
{{- with $.watched -}}
{{- range without $named "*" | sortAlpha -}}
{{- if not (has . $.watched) -}}
{{- fail (printf "%s: namespace %s is not watched; correct its name, add --namespace=%s, or remove the limit" $flag . .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
