"""axolotl with any allocator: a plugin that reads the allocation from axolotl's YAML.

plugins:
  - apportion.trl.axolotl.plugin.AllocationPlugin
apportion:
  allocator: {name: hora, rollouts_per_prompt: 8}
"""
