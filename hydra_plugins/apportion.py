"""Offer the config group ``allocation`` to verl's trainer, also to stock ``verl.trainer.main_ppo``.

Hydra imports every module of ``hydra_plugins`` when it starts. This one only imports the package once a program with
verl's configuration looks for ``allocation``, so that other programs are neither changed nor slowed.
"""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin

GROUP = "allocation"
VERL = ("verl/trainer/config", "apportion/verl/conf")


class AllocationSearchPath(SearchPathPlugin):
    """Adds ``apportion://`` to the search path of programs whose configuration is verl's."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the source if verl's configuration is on the path."""
        paths = [(each.path or "").replace(".", "/").rstrip("/") for each in search_path.get_path()]
        if any(path.endswith(VERL) for path in paths):
            search_path.append("apportion", "apportion://")


class AllocationSource(ConfigSource):
    """The configs of ``apportion.verl.configs``, which is imported when one of them is asked for."""

    @staticmethod
    def scheme() -> str:
        """Return the prefix of this source in a search path."""
        return "apportion"

    def available(self) -> bool:
        """Return that the source exists."""
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the config with this path."""
        from omegaconf import OmegaConf  # noqa: PLC0415 - only when it is needed

        from apportion.verl.configs import is_preset, settings_of  # noqa: PLC0415 - as above

        path = config_path.removesuffix(".yaml")
        if not self.is_config(path):
            raise ConfigLoadError(f"Config not found : {config_path}")
        group = _groups().get(path.rpartition("/")[0])
        within = None if group is None or group.path == GROUP else group.key
        header = {"package": "_global_" if is_preset(path) else within}
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(settings_of(path)), header)

    def is_group(self, config_path: str) -> bool:
        """Return whether this path is ``allocation`` or a group in it."""
        return config_path == "" or (_is_ours(config_path) and config_path.strip("/") in _groups())

    def is_config(self, config_path: str) -> bool:
        """Return whether this path is that of a config."""
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        return _is_ours(config_path) and group in _groups() and name in _groups()[group].choices

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names of the configs and groups in a group, sorted."""
        path = config_path.strip("/")
        if path == "":
            return [] if results_filter == ObjectType.CONFIG else [GROUP]
        configs = [] if results_filter == ObjectType.GROUP else _groups()[path].choices
        below = [each.removeprefix(f"{path}/") for each in _groups() if each.startswith(f"{path}/")]
        return sorted({*configs, *([] if results_filter == ObjectType.CONFIG else below)})


def _is_ours(config_path: str) -> bool:
    return config_path.split("/")[0] == GROUP


def _groups():
    from apportion.verl.configs import ALLOCATION, GROUPS, SELECTION  # noqa: PLC0415 - as above

    return {group.path: group for group in (ALLOCATION, SELECTION, *GROUPS)}
