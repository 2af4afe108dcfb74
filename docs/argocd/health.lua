-- Health of an LLMService for Argo CD: the same answer as kstatus gives (Flux, Helm). An objective that is missed is
-- not a failed deployment, and neither are replicas that start because of the load.
local health = {status = "Progressing", message = "waiting for Holdfast"}
local status = obj.status
if status == nil or status.conditions == nil or status.observedGeneration ~= obj.metadata.generation then
  return health
end
local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end
local ready, stalled, reconciling = conditions.Ready, conditions.Stalled, conditions.Reconciling
if stalled ~= nil and stalled.status == "True" then
  return {status = "Degraded", message = stalled.reason .. ": " .. stalled.message}
end
if reconciling ~= nil and reconciling.status == "True" then
  return {status = "Progressing", message = reconciling.reason .. ": " .. reconciling.message}
end
if ready == nil then
  return health
end
if ready.status == "True" then
  return {status = "Healthy", message = ready.message}
end
return {status = "Progressing", message = ready.reason .. ": " .. ready.message}
