"""Recording rules, alerts and dashboards as data: printed by the command line, shipped as files of the chart."""
