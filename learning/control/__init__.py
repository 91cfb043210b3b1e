"""Control: policies for Gymnasium environments, trained with TorchRL's networks and losses."""
