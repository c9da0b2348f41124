"""nosync: four GPU libraries, their host syncs removed by patch series, applied, proved and measured."""

__version__ = "0.1.0"
